#!/usr/bin/env bash
# Every GPU check and figure on one machine:
#   benchmarks/gpu_all.sh "PART ..." OUT
# small: all kernels against their oracles, 135M and 1.5B. large: 8B, fp8, many streams, long prompts, the generate of
# transformers, compute-sanitizer. tries: other ways of running, 135M and 1.5B.
# On an H200 small takes about three minutes, tries and large together about five. Kernels of all parts are compiled
# first by processes side by side, which fill Triton's cache; timings then run one at a time, the most wanted first. One
# failure does not stop the rest, and nothing may run longer than its seconds. OUT gets checks.log, tables.log and,
# anew after every figure, results.tar.gz with the dated JSON.
set -u
parts=$1 out=$2 warm=$(mktemp -d) results=$(mktemp -d)
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
check() { # the words of switch_whole, then names of checks; side by side
  local words=$1; shift
  for kind in "$@"; do compile "check_${kind// /_}_$words" gpu_check --only "$kind" --whole "$words"; done
}

small_compile() {
  check "" "attention h" "attention i" rotate qkv ffn layer "head r" transition "network qwen2" "network qwen3" \
    "network llama" "rounds whole" "rounds parts" "rounds true" embed "row kernels"
  compile verify_135M gpu_verify --models 135M --rounds 5 --one-forward 8,11
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
  compile forward gpu_forward --models 135M,1.5B --rows 1,16,64,256
}
small_figures() {
  figure 40 5 gpu_verify --models 135M --rounds 100 --one-forward 8,11
  figure 40 4 gpu_verify --models 1.5B --rounds 60
  figure 40 9 gpu_forward --models 135M,1.5B --rows 1,16,64,256 --profile
}

forward_1_5B=(gpu_forward --models 1.5B --rows 16,64 --tries "" overlap=0 merge=1 merge=1,early=1
  merge=1,early=1,soon=1 merge=1,early=1,splits=8 narrow=100 programs=190)
forward_8B=(gpu_forward --models 8B --rows 16,32 --tries "" merge=1 narrow=1000)
forward_8B_fp8=(gpu_forward --models 8B --rows 16,32 --schemes fp8 --tries)
fp8_tries=(fp8=1 fp8=1,merge=1 fp8=1,merge=1,early=1,overlap=9000000000 fp8=0 fp8=2)
whole_135M=(gpu_whole --tries "" by_warps=1 by_warps=1,ahead=1 by_warps=1,ahead=1,fetch=0)
tries_compile() {
  check "" "network qwen2" "network fp8" "head fp8" "rounds parts" "rounds true" layer "fixed products" "attention h"
  check by_warps=1,ahead=1 "network llama" "rounds true"
  check merge=1,early=1,soon=1 "network qwen" "rounds parts"
  check fp8=1 "head fp8"
  compile forward_1.5B "${forward_1_5B[@]}"
  compile forward_1.5B_fp8 gpu_forward --models 1.5B --rows 16,64 --schemes fp8 --tries fp8=1 fp8=0
  # Twenty layers are enough to be launched as all of them are, and leave room for the others.
  compile forward_8B "${forward_8B[@]}" --layers 20
  compile forward_8B_fp8 "${forward_8B_fp8[@]}" "${fp8_tries[@]:0:2}" --layers 20
  compile forward_8B_overlap "${forward_8B_fp8[@]}" "${fp8_tries[2]}" --layers 20
  compile forward_8B_half "${forward_8B_fp8[@]}" "${fp8_tries[@]:3}" --layers 20
  compile whole_135M "${whole_135M[@]}"
  # The attention of 8B is that of 4B.
  compile prefill gpu_prefill --model 4B --prompts 1024
  compile prefill_stages gpu_prefill --model 4B --prompts 1024 --whole key_stages=3
  compile prefill_keys gpu_prefill --model 4B --prompts 1024 --whole keys=128
  compile canvas_peer gpu_canvas_peer --tokens 256 --steps 2
  for tool in memcheck racecheck; do sanitize $tool "attention heads=(9, 3, 64) splits=16"; done
  sanitize racecheck "attention heads=(9, 3, 64) splits=16" --whole merge=1
  sanitize racecheck "qkv 1.5B rows=16" # the same matrix instructions, without attention
}
tries_figures() {
  sanitized
  figure 50 10 "${forward_8B_fp8[@]}" "${fp8_tries[@]}"
  figure 30 4 "${whole_135M[@]}"
  figure 40 16 "${forward_1_5B[@]}"
  figure 40 6 "${forward_8B[@]}"
  figure 40 3 gpu_prefill --prompts 1024,4096,32768
  figure 30 1 gpu_prefill --prompts 32768 --whole key_stages=3
  figure 30 1 gpu_prefill --prompts 32768 --whole keys=128
  figure 30 3 gpu_verify --models 135M --rounds 100 --whole by_warps=1,ahead=1
  figure 40 4 gpu_forward --models 1.5B --rows 16,64 --schemes fp8 --tries fp8=1 fp8=0
  figure 30 12 gpu_forward --models 8B --rows 16 --schemes fp8 --tries fp8=1 --profile
  figure 40 3 gpu_verify --models 1.5B --rounds 60
  figure 40 1 gpu_canvas_peer
  figure 30 6 gpu_forward --models 135M,1.5B --rows 16,64,256 --product fixed
  figure 45 10 gpu_batch --product fixed
}

sanitize() { # side by side with the compiling, since nothing is timed here
  local tool=$1 kind=$2; shift 2
  local words="$*"
  local name="${tool}_${kind// /_}${words// /_}"
  timeout -k 5 110 compute-sanitizer --tool "$tool" python3 -m benchmarks.gpu_check --only "$kind" "$@" \
    --out "$warm/$tool" >"$warm/sanitizer_$name.log" 2>&1 &
}
sanitized() {
  grep -H "SUMMARY\|passed\|FAILED" "$warm"/sanitizer_*.log | sed "s|$warm/||"
  grep -h -A 2 "Race reported\|Error: " "$warm"/sanitizer_*.log | cut -c 1-200 | sort | uniq -c | sort -rn | head -30
}
large_compile() {
  compile forward_8B gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8
  compile verify_8B gpu_verify --models 8B --rounds 5 --canvas "" --one-forward ""
  compile batch gpu_batch
  compile prefill gpu_prefill --prompts 1024
  compile peers gpu_peers --tokens 8
  compile canvas_peer gpu_canvas_peer --tokens 256 --steps 2
  for tool in memcheck racecheck; do
    for kind in "transition with sets 0" "qkv 135M rows=16" "attention heads=(9, 3, 64) splits=16"; do
      sanitize $tool "$kind"
    done
  done
}
large_figures() {
  sanitized
  figure 60 8 gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8
  figure 45 10 gpu_batch
  figure 75 7 gpu_prefill --far 131072
  figure 50 3 gpu_peers
  figure 40 1 gpu_canvas_peer
  figure 30 2 gpu_verify --models 8B --rounds 60 --canvas "" --one-forward ""
}

run() {
  for part in $parts; do ${part}_compile; done
  wait
  cat "$warm"/check_*.log 2>/dev/null | grep -v "running without CUDA graphs" >"$out/checks.log"
  grep -H "FAILED\|passed" "$warm"/check_*.log 2>/dev/null | sed "s|$warm/||" | cut -c 1-220
  echo "compiled after $SECONDS s"
  for part in $parts; do ${part}_figures; done
  echo "done after $SECONDS s"
}

for part in $parts; do
  case $part in small | tries | large) ;; *)
    echo "usage: $0 \"small tries large\" OUT" >&2
    exit 2
    ;;
  esac
done
run 2>&1 | tee "$out/tables.log"
