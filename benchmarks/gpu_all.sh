#!/usr/bin/env bash
# Every GPU check and figure, in four parts of two to four minutes each on an H200:
#   benchmarks/gpu_all.sh small|second|large|final OUT
# Kernels are compiled first by processes side by side, which fill Triton's cache; timings then run one at a time.
# One failure does not stop the rest: read OUT/checks.log and the tables.
set -u
part=$1 out=$2 warm=$(mktemp -d)
export PYTHONUNBUFFERED=1
mkdir -p "$out"

bench() { local seconds=$1; shift; timeout "$seconds" python3 -m "benchmarks.$1" "${@:2}"; }
compile() { local name=$1; shift; bench 75 "$@" --out "$warm/$name" >"$warm/$name.log" 2>&1 & }

case $part in
small)
  for kind in attention rotate qkv ffn layer head network rounds transition rows; do
    compile "check_$kind" gpu_check --only "$kind"
  done
  compile check_overlap gpu_check --only rounds --overlap
  compile forward gpu_forward --models 135M,1.5B --rows 1,16,64
  compile forward_overlap gpu_forward --models 135M,1.5B --rows 1,16 --overlap
  compile verify gpu_verify --models 135M --rounds 5
  wait
  cat "$warm"/check_*.log >"$out/checks.log"
  grep -h "FAILED\|passed" "$out/checks.log"
  tail -n 2 "$warm"/forward*.log "$warm/verify.log"
  bench 60 gpu_tiles --models 1.5B --seconds 25 --out "$out" | tail -n 45
  bench 40 gpu_forward --models 135M,1.5B --rows 1,16,64 --out "$out" | tail -n 7
  bench 30 gpu_forward --models 135M,1.5B --rows 1,16 --overlap --out "$out" | tail -n 5
  bench 40 gpu_verify --models 135M,1.5B --out "$out" | tail -n 7
  bench 30 gpu_verify --models 135M --overlap --out "$out" | tail -n 4
  ;;
second)
  for kind in qkv ffn layer head "network qwen2 0" rounds embed; do
    compile "check_${kind// /_}" gpu_check --only "$kind"
  done
  compile check_overlap gpu_check --only "rounds of [20" --overlap
  for model in 135M 1.5B 8B; do
    compile "tiles_$model" gpu_tiles --models $model --seconds 40
    compile "forward_$model" gpu_forward --models $model --rows 1,16,64,256
    compile "overlap_$model" gpu_forward --models $model --rows 16 --overlap
  done
  compile verify gpu_verify --models 135M --rounds 5 --canvas 16
  wait
  cat "$warm"/check_*.log >"$out/checks.log"
  tail -n 4 "$warm"/forward_*.log "$warm"/overlap_*.log "$warm"/tiles_*.log "$warm/verify.log" >>"$out/checks.log"
  grep -h "FAILED\|passed\|Error" "$out/checks.log"
  echo "compiled after $SECONDS s"
  bench 45 gpu_forward --models 135M,1.5B,8B --rows 1,16,64,256 --profile --out "$out" | grep -v "^{"
  bench 22 gpu_tiles --models 1.5B,135M,8B --seconds 12 --out "$out" | grep -v "^{" | cut -c 1-130
  bench 22 gpu_verify --models 135M,1.5B --canvas 16 --rounds 60 --out "$out" | tail -n 5
  bench 22 gpu_forward --models 135M,1.5B,8B --rows 16 --overlap --out "$out" | tail -n 4
  echo "done after $SECONDS s"
  ;;
large)
  compile forward gpu_forward --models 8B --rows 1,16,32 --fp8
  compile batch gpu_batch
  compile prefill gpu_prefill --prompts 1024
  wait
  tail -n 2 "$warm"/*.log
  bench 60 gpu_forward --models 8B --rows 1,16,32 --fp8 --out "$out" | tail -n 7
  bench 40 gpu_batch --out "$out" | tail -n 9
  bench 60 gpu_prefill --out "$out" | tail -n 4
  ;;
final)
  bench 90 gpu_check --out "$out" | grep "FAILED\|passed"
  bench 60 gpu_forward --models 135M,1.5B,8B --rows 1,16,64 --out "$out" | tail -n 10
  bench 60 gpu_verify --models 135M,1.5B --out "$out" | tail -n 7
  compute-sanitizer --tool memcheck python3 -m benchmarks.gpu_check --only transition --out "$warm/memcheck" | tail -n 3
  ;;
*)
  echo "usage: $0 small|second|large|final OUT" >&2
  exit 2
  ;;
esac
