#!/usr/bin/env bash
# Every GPU check and figure on one machine:
#   benchmarks/gpu_all.sh "PART ..." OUT [compile|figures]
# small: all kernels against their oracles, 135M and 1.5B. large: 8B, few bits, many streams, long prompts, the generate
# of transformers, compute-sanitizer. tries: what has changed since the last run, and ways of running that wait for it.
# On an H200 small and large take about three minutes each, tries two. Kernels are compiled first, by processes side by
# side that fill Triton's cache, in groups of at most 60 GB on the GPU; checks and compute-sanitizer
# run among them. Timings then run one at a time, the most wanted first. The third word does one of the two alone: they
# may be hours apart, the first beside other work. One failure does not stop the rest, and nothing may run longer than
# its seconds. OUT gets checks.log, compile.log, tables.log and, anew after every figure, results.tar.gz with the JSON.
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
compile_each() { # words of tries in one string, then benchmark and options: a process for each try, and for none
  local tries=$1; shift
  for words in "" $tries; do compile "$1_$2_$3_$words" "$@" --tries "$words"; done
}
check() { # the words of switch_whole, then names of checks; side by side
  local words=$1; shift
  for kind in "$@"; do compile "check_${kind// /_}_$words" gpu_check --only "$kind" --whole "$words"; done
}

small_compile() {
  check "" "attention h" "attention i" rotate qkv ffn layer "head r" transition "network qwen2" "network qwen3" \
    "network llama" "rounds whole" "rounds parts" "rounds true" embed "row kernels" "network between" teams "network fp8" \
    int4 "rounds between" "rounds trees" "few tiles"
  compile verify_135M gpu_verify --models 135M --rounds 5 --one-forward 8,11
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
  compile forward gpu_forward --models 135M,1.5B --rows 1,16,32,64,256
  compile few_bits gpu_forward --models 1.5B --rows 16,32,64 --schemes fp8,int4
}
small_figures() {
  figure 40 5 gpu_verify --models 135M --rounds 100 --one-forward 8,11
  figure 40 4 gpu_verify --models 1.5B --rounds 60
  figure 40 11 gpu_forward --models 135M,1.5B --rows 1,16,32,64,256 --profile
  figure 60 6 gpu_forward --models 1.5B --rows 16,32,64 --schemes fp8,int4
}

fp8_tries="depth=64 overlap=0"
forward_8B_fp8=(gpu_forward --models 8B --schemes fp8 --rows 16,32)
forward_1_5B=(gpu_forward --models 1.5B --rows 16,32,64)
verify_135M=(gpu_verify --models 135M --one-forward 8)
tries_compile() {
  check "" "network fp8" "fp8 qkv" "fp8 ffn" "network llama" "network qwen2" "rounds true" "attention h" transition \
    layer "rounds trees" "transition trees" forks runners-up
  check used=1 "network llama" "rounds true"
  wait
  # Two layers are launched as all of them are, if it is said whether launches overlap.
  compile_each "$fp8_tries" "${forward_8B_fp8[@]}" --layers 2
  compile forward_8B gpu_forward --models 8B --rows 16,32 --tries overlap=0 --layers 2
  compile forward_1.5B "${forward_1_5B[@]}" --layers 2
  compile_each used=1 gpu_whole --models 135M
  compile verify_135M "${verify_135M[@]}" --rounds 5
  compile verify_1.5B gpu_verify --models 1.5B --rounds 5
}
tries_figures() {
  figure 40 6 "${forward_8B_fp8[@]}" --tries "" $fp8_tries
  figure 30 2 gpu_forward --models 8B --rows 16,32
  figure 30 3 "${forward_1_5B[@]}"
  figure 30 2 gpu_whole --models 135M --tries "" used=1
  figure 30 5 "${verify_135M[@]}" --rounds 100
  figure 30 5 gpu_verify --models 1.5B --rounds 60
}

sanitize() { # side by side with the compiling, since nothing is timed here; without the allocator's settings, under
  # which torch makes calls that the driver refuses
  local tool=$1 kind=$2; shift 2
  local words="$*"
  local name="${tool}_${kind// /_}${words// /_}"
  env -u PYTORCH_CUDA_ALLOC_CONF -u PYTORCH_ALLOC_CONF timeout -k 5 110 compute-sanitizer --tool "$tool" \
    python3 -m benchmarks.gpu_check --only "$kind" "$@" --out "$warm/$tool" >"$warm/sanitizer_$name.log" 2>&1 &
}
sanitized() { # summaries, and every report with the lines that say where, equal ones counted
  ls "$warm"/sanitizer_*.log >/dev/null 2>&1 || return 0
  grep -H "SUMMARY\|passed\|FAILED" "$warm"/sanitizer_*.log | sed "s|$warm/||"
  grep -h -A 3 "^========= \(Error\|Race\|Program hit\|Invalid\|Out-of\|Misaligned\|Warning\|Internal\)\|Race reported" \
    "$warm"/sanitizer_*.log | cut -c 1-220 | sort | uniq -c | sort -rn | head -40
}
large_compile() {
  compile forward_8B gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8,int4
  compile verify_8B gpu_verify --models 8B --rounds 5 --canvas "" --one-forward ""
  compile batch gpu_batch
  compile prefill gpu_prefill --prompts 1024
  compile peers gpu_peers --tokens 8
  compile canvas_peer gpu_canvas_peer --tokens 256 --steps 2
  for tool in memcheck racecheck; do
    for kind in "transition with sets 0" "qkv 135M rows=16" "attention heads=(9, 3, 64) splits=16"; do
      sanitize $tool "$kind"
    done
    sanitize $tool "attention heads=(9, 3, 64) splits=1 block"
  done
  sanitize racecheck "fp8 qkv 1.5B rows=16"
  sanitize memcheck "network int4 teams rows=55 canvas=True"
  sanitize racecheck "network teams 0 rows=16 canvas=True" --whole programs=16
}
large_figures() {
  figure 90 12 gpu_forward --models 8B --rows 1,16,32,64 --schemes bfloat16,fp8,int4
  figure 45 10 gpu_batch
  figure 75 7 gpu_prefill --far 131072
  figure 30 2 gpu_prefill --prompts 1024,4096 --weights fp8
  figure 30 2 gpu_prefill --prompts 1024,4096 --weights int4
  figure 50 3 gpu_peers
  figure 40 1 gpu_canvas_peer
  figure 30 2 gpu_verify --models 8B --rounds 60 --canvas "" --one-forward ""
}

compile_all() {
  for part in $parts; do
    "${part}_compile"
    wait
  done
  cat "$warm"/check_*.log 2>/dev/null | grep -v "running without CUDA graphs" >"$out/checks.log"
  grep -H "FAILED\|passed" "$warm"/check_*.log 2>/dev/null | sed "s|$warm/||" | cut -c 1-220
  sanitized
  for log in "$warm"/*.log; do # what was only compiled: why, where it was not
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
