#!/usr/bin/env bash
# All figures of a base and its canvas adapter on one GPU machine:
#   benchmarks/gpu_coder.sh OUT BASE CANVAS DATA [warm]
# DATA is a folder of `eval_gpu.py --pack`. About 330 seconds, the most wanted figures first; OUT gets gpu_coder-*.json,
# coder-evals.json (answers, to be scored afterwards with `eval_gpu.py --rescore`) and gpu_coder.log. With `warm` only a
# few short questions: it compiles the kernels into Triton's cache and shows that everything runs, in a minute or two.
# SECONDS_IN_ALL and PARTS change the time and the parts; COMMIT is noted in the report.
set -u
if [ $# -lt 4 ]; then
  echo "usage: $0 OUT BASE CANVAS DATA [warm]" >&2
  exit 2
fi
out=$1 base=$2 canvas=$3 data=$4 mode=${5:-all}
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
parts=${PARTS:-device speed streams fim rounds equality tasks} seconds=${SECONDS_IN_ALL:-330} scale=1
if [ "$mode" = warm ]; then
  parts="device speed streams fim rounds tasks" seconds=150 scale=0.01 out=$out/warm
fi
mkdir -p "$out"
# shellcheck disable=SC2086
timeout -k 5 $((seconds + 20)) python3 -m benchmarks.gpu_coder --base "$base" --canvas "$canvas" --data "$data" \
  --out "$out" --parts $parts --seconds "$seconds" --scale "$scale" --commit "${COMMIT:-unknown}" 2>&1 |
  grep -v --line-buffered "Warning\|_warn_once" | tee "$out/gpu_coder.log" | cut -c 1-300
echo "ended with ${PIPESTATUS[0]} after $SECONDS s"
ls -la "$out"
