#!/usr/bin/env bash
# Every GPU check and figure on one machine:
#   benchmarks/gpu_all.sh "PART ..." OUT [compile|figures]
# small: all checks, 135M and 1.5B. large: 8B, quantised weights, many streams, long prompts, generate of transformers,
# compute-sanitizer. tries: recent changes and experimental switches. On an H200 small and large take about three minutes
# each, tries two. Kernels are compiled first, by parallel processes that fill Triton's cache, in groups of at most 60 GB
# on the GPU; checks and compute-sanitizer run at the same time. Timings then run one at a time, the most important first.
# The third argument runs one of the two stages alone. A failure does not stop the rest, and every command has a time
# limit. OUT gets checks.log, compile.log, tables.log and, after every figure, results.tar.gz with the JSON.
set -u
parts=$1 out=$2 stage=${3:-} warm=$(mktemp -d) results=$(mktemp -d)
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$out"

bench() { local seconds=$1; shift; timeout -k 5 "$seconds" python3 -m "benchmarks.$1" "${@:2}"; }
compile() { local name=$1; shift; bench 120 "$@" --out "$warm/$name" >"$warm/$name.log" 2>&1 & }
figure() { # seconds, lines of its table, benchmark and options
  local seconds=$1 lines=$2; shift 2
  echo "-- $* (at $SECONDS s)"
  bench "$seconds" "$@" --out "$results" >"$warm/figure.log" 2>&1 || echo "   ended with $?"
  grep "^  [a-z]\|^    \|^{\|^rises\|Error" "$warm/figure.log" | tail -n "$lines" | cut -c 1-330
  tar -C "$results" -czf "$out/results.tar.gz" .
}
compile_each() { # switches in one string, then benchmark and options: one process for each, and one without
  local tries=$1; shift
  for words in "" $tries; do compile "$1_$2_$3_$words" "$@" --switches "$words"; done
}
check() { # switches (gpu_setup.apply_switches), then names of checks; in parallel
  local words=$1; shift
  for kind in "$@"; do compile "check_${kind// /_}_$words" gpu_check --only "$kind" --switches "$words"; done
}

small_compile() {
  check "" "attention h" "attention i" rotate qkv ffn layer "head r" acceptance "network qwen2" "network qwen3" \
    "network llama" "rounds small" "rounds wide" "rounds nano" embed "row kernels" "network fused" cluster \
    "network fp8" int4 "rounds fused" "rounds trees" "single-sequence"
  compile verify_135M gpu_verify --models 135M --rounds 5
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
  compile forward gpu_forward --models 135M,1.5B --rows 1,16,32,64,256
  compile few_bits gpu_forward --models 1.5B --rows 16,32,64 --weights fp8,int4
}
small_figures() {
  figure 40 5 gpu_verify --models 135M --rounds 100
  figure 40 4 gpu_verify --models 1.5B --rounds 60
  figure 40 11 gpu_forward --models 135M,1.5B --rows 1,16,32,64,256 --profile
  figure 60 6 gpu_forward --models 1.5B --rows 16,32,64 --weights fp8,int4
}

fp8_switches="fp8_block_k=64 pdl_bytes=0"
forward_8B_fp8=(gpu_forward --models 8B --weights fp8 --rows 16,32)
forward_1_5B=(gpu_forward --models 1.5B --rows 16,32,64)
verify_135M=(gpu_verify --models 135M)
tries_compile() {
  check "" "network fp8" "fp8 qkv" "fp8 ffn" "network llama" "network qwen2" "rounds nano" "attention h" acceptance \
    layer "rounds trees" "acceptance trees" "tree rows" runners-up
  check skip_empty=1 "network llama" "rounds nano"
  wait
  # Two layers compile the same kernels as all of them if PDL is set explicitly.
  compile_each "$fp8_switches" "${forward_8B_fp8[@]}" --layers 2
  compile forward_8B gpu_forward --models 8B --rows 16,32 --switches pdl_bytes=0 --layers 2
  compile forward_1.5B "${forward_1_5B[@]}" --layers 2
  compile verify_135M "${verify_135M[@]}" --rounds 5
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
}
tries_figures() {
  figure 40 6 "${forward_8B_fp8[@]}" --switches "" $fp8_switches
  figure 30 2 gpu_forward --models 8B --rows 16,32
  figure 30 3 "${forward_1_5B[@]}"
  figure 30 5 "${verify_135M[@]}" --rounds 100
  figure 30 5 gpu_verify --models 1.5B --rounds 60
}

sanitize() { # in parallel with the compilation, because nothing is timed; without the allocator's settings, under
  # which torch makes calls that the driver refuses
  local tool=$1 kind=$2; shift 2
  local words="$*"
  local name="${tool}_${kind// /_}${words// /_}"
  env -u PYTORCH_CUDA_ALLOC_CONF -u PYTORCH_ALLOC_CONF timeout -k 5 110 compute-sanitizer --tool "$tool" \
    python3 -m benchmarks.gpu_check --only "$kind" "$@" --out "$warm/$tool" >"$warm/sanitizer_$name.log" 2>&1 &
}
sanitized() { # summaries, and every report with its location; equal ones are counted
  ls "$warm"/sanitizer_*.log >/dev/null 2>&1 || return 0
  grep -H "SUMMARY\|passed\|FAILED" "$warm"/sanitizer_*.log | sed "s|$warm/||"
  grep -h -A 3 "^========= \(Error\|Race\|Program hit\|Invalid\|Out-of\|Misaligned\|Warning\|Internal\)\|Race reported" \
    "$warm"/sanitizer_*.log | cut -c 1-220 | sort | uniq -c | sort -rn | head -40
}
large_compile() {
  compile forward_8B gpu_forward --models 8B --rows 1,16,32,64 --weights bfloat16,fp8,int4
  compile verify_8B gpu_verify --models 8B --rounds 5 --canvas ""
  compile batch gpu_batch
  compile adapters gpu_adapters --tokens 8 --repeats 1
  compile prefill gpu_prefill --prompts 1024
  compile peers gpu_peers --tokens 8
  compile canvas_peer gpu_canvas_peer --tokens 256 --steps 2
  for tool in memcheck racecheck; do
    for kind in "qkv 135M rows=16" "attention heads=(9, 3, 64) splits=16"; do
      sanitize $tool "$kind"
    done
    sanitize $tool "attention heads=(9, 3, 64) splits=1 block"
  done
  sanitize racecheck "fp8 qkv 1.5B rows=16"
  sanitize memcheck "network int4 cluster rows=55 canvas=True"
  sanitize racecheck "network cluster 0 rows=16 canvas=True" --switches ctas=16
}
large_figures() {
  figure 90 12 gpu_forward --models 8B --rows 1,16,32,64 --weights bfloat16,fp8,int4
  figure 45 10 gpu_batch
  figure 60 1 gpu_adapters
  figure 75 7 gpu_prefill --far 131072
  figure 30 2 gpu_prefill --prompts 1024,4096 --weights fp8
  figure 30 2 gpu_prefill --prompts 1024,4096 --weights int4
  figure 50 3 gpu_peers
  figure 40 1 gpu_canvas_peer
  figure 30 2 gpu_verify --models 8B --rounds 60 --canvas ""
}

compile_all() {
  for part in $parts; do
    "${part}_compile"
    wait
  done
  cat "$warm"/check_*.log 2>/dev/null | grep -v "running without CUDA graphs" >"$out/checks.log"
  grep -H "FAILED\|passed" "$warm"/check_*.log 2>/dev/null | sed "s|$warm/||" | cut -c 1-220
  sanitized
  for log in "$warm"/*.log; do # errors of the compile-only runs
    case $log in */check_* | */sanitizer_*) ;; *) grep -H "Error" "$log" | tail -n 2 | sed "s|$warm/||" | cut -c 1-250 ;; esac
  done
  echo "compiled after $SECONDS s"
}
figures_all() {
  for part in $parts; do "${part}_figures"; done
  echo "done after $SECONDS s"
}

usage() {
  echo "usage: $0 \"small tries large\" OUT [compile|figures]" >&2
  exit 2
}
for part in $parts; do
  case $part in small | tries | large) ;; *) usage ;; esac
done
case $stage in "" | compile | figures) ;; *) usage ;; esac
[ "$stage" = figures ] || compile_all 2>&1 | tee "$out/compile.log"
[ "$stage" = compile ] || figures_all 2>&1 | tee "$out/tables.log"
