#!/usr/bin/env bash
# Every GPU check and figure, in two parts of about five minutes each on an H200:
#   benchmarks/gpu_all.sh small|large|final OUT        (final is both)
# Kernels are compiled first by processes side by side, which fill Triton's cache; timings then run one at a time.
# One failure does not stop the rest, and nothing may run longer than its seconds. OUT gets checks.log, tables.log and
# results.tar.gz with the dated JSON.
set -u
part=$1 out=$2 warm=$(mktemp -d) results=$(mktemp -d)
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$out"

bench() { local seconds=$1; shift; timeout -k 5 "$seconds" python3 -m "benchmarks.$1" "${@:2}"; }
compile() { local name=$1; shift; bench 120 "$@" --out "$warm/$name" >"$warm/$name.log" 2>&1 & }
figure() { # seconds, lines of its table, benchmark and options
  local seconds=$1 lines=$2; shift 2
  echo "-- $* (at $SECONDS s)"
  bench "$seconds" "$@" --out "$results" >"$warm/figure.log" 2>&1 || echo "   ended with $?"
  grep -v "Warning\|_warn_once" "$warm/figure.log" | tail -n "$lines" | cut -c 1-330
}
finish() {
  tar -C "$results" -czf "$out/results.tar.gz" . 2>/dev/null
  echo "done after $SECONDS s"
}

small() {
  for kind in "attention h" "attention i" rotate qkv ffn layer "head r" transition "network qwen2" "network qwen3" "network llama" \
    "rounds whole" "rounds parts" "rounds true" embed "row kernels"; do
    compile "check_${kind// /_}" gpu_check --only "$kind"
  done
  compile whole_135M gpu_whole --models 135M
  compile whole_1.5B gpu_whole --models 1.5B
  compile verify_135M gpu_verify --models 135M --rounds 5 --one-forward 8,11
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
  compile forward gpu_forward --models 135M,1.5B --rows 1,16,64,256
  compile overlap gpu_forward --models 1.5B --rows 16,64 --overlap
  compile peers gpu_peers --tokens 8
  wait
  cat "$warm"/check_*.log >"$out/checks.log"
  grep -h "FAILED\|passed" "$out/checks.log" | cut -c 1-220
  echo "compiled after $SECONDS s"
  tail -n 3 "$warm"/whole*.log "$warm"/verify*.log "$warm"/forward.log "$warm"/overlap.log "$warm"/peers.log >>"$out/checks.log"
  figure 40 5 gpu_verify --models 135M --rounds 100 --one-forward 8,11
  figure 40 4 gpu_verify --models 1.5B --rounds 60
  figure 40 9 gpu_forward --models 135M,1.5B --rows 1,16,64,256 --profile
  figure 30 9 gpu_whole --models 135M
  figure 40 9 gpu_whole --models 1.5B
  figure 25 3 gpu_forward --models 1.5B --rows 16,64 --overlap
  figure 50 3 gpu_peers
}

large() {
  compile forward gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8
  compile overlap gpu_forward --models 8B --rows 16 --schemes bfloat16,fp8 --overlap
  compile batch gpu_batch
  compile prefill gpu_prefill --prompts 1024
  compile sanitizer gpu_check --only "transition with sets 0"
  wait
  tail -n 3 "$warm"/forward.log "$warm"/overlap.log "$warm"/batch.log "$warm"/prefill.log >>"$out/checks.log"
  echo "compiled after $SECONDS s"
  figure 60 9 gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8
  figure 45 10 gpu_batch
  figure 75 7 gpu_prefill --far 131072
  figure 45 3 gpu_forward --models 8B --rows 16 --schemes bfloat16,fp8 --overlap
  for tool in memcheck racecheck; do
    for kind in "transition with sets 0" "qkv 135M rows=16" "attention heads=(9, 3, 64) splits=16"; do
      echo "-- $tool: $kind (at $SECONDS s)"
      timeout -k 5 45 compute-sanitizer --tool $tool python3 -m benchmarks.gpu_check --only "$kind" --out "$warm/$tool" 2>&1 |
        grep "SUMMARY\|passed\|FAILED\|Error" | tail -n 4
    done
  done
}

case $part in
small | large) $part 2>&1 | tee "$out/tables.log" ;;
final) { small; large; } 2>&1 | tee "$out/tables.log" ;;
*)
  echo "usage: $0 small|large|final OUT" >&2
  exit 2
  ;;
esac
finish
