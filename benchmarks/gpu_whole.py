"""Ways to run a small network in one launch: programs, loads under way and prefetching, timed one by one.

    python -m benchmarks.gpu_whole --out DIR [--models 135M,1.5B] [--rows 16,80]

`rows` of more than 16 are a canvas behind 16 plain rows; the body alone is timed, without the head.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch

from benchmarks.gpu_setup import SHAPES, made_up_batch, make_runner, pages_for, random_model, time_ms, write_report
from quicksilver.engine.graphs import GraphLimits, capture
from quicksilver.engine.rounds import RoundRunner
from quicksilver.model.kernels import network, resident

PAST = 512


def body_ms(runner: RoundRunner, rows: int, num_canvas: int) -> float:
    buffers, space = runner._buffers(rows)
    batch = made_up_batch(1, rows, PAST, num_canvas)
    buffers.fill(batch, runner.network.shape(rows).tile_rows)
    replay = capture(lambda: runner._run(buffers, space, num_canvas > 0), runner.device, runner.pool)
    return time_ms(replay)


def measure(name: str, row_counts: list[int], tries: list[tuple[int, int, bool]]) -> list[dict[str, Any]]:
    resident.RESIDENT_BYTES = 1 << 40
    network.fits = lambda config, weights: resident.fits(config, weights, 1 << 40)  # type: ignore[attr-defined]
    model = random_model(SHAPES[name], rank=64)
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=2048)
    runner = make_runner(model, pages_for(1, PAST + 256), limits)
    count = torch.cuda.get_device_properties(0).multi_processor_count
    found = []
    for rows, (share, stages, fetches) in itertools.product(row_counts, tries):
        resident.programs_for = lambda *_, share=share: count * share  # type: ignore[assignment]
        resident.STAGES, resident.FETCH = stages, fetches
        row: dict[str, Any] = {"model": name, "rows": rows, "programs": count * share, "stages": stages}
        try:
            found.append(row | {"fetch": fetches, "ms": body_ms(runner, rows, max(rows - 16, 0))})
            if rows == 16:
                found[-1]["draft_ms"] = body_ms(runner, rows, 15)
        except Exception as error:
            found.append(row | {"failed": f"{type(error).__name__}: {str(error)[:200]}"})
        print(found[-1], flush=True)
    return found


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="135M,1.5B")
    parser.add_argument("--rows", default="16,80")
    parser.add_argument("--tries", default="1-9-1,2-9-1,1-9-0,1-5-1", help="programs a multiprocessor-stages-prefetch")
    options = parser.parse_args()
    rows = [int(count) for count in options.rows.split(",")]
    tries = [tuple(int(part) for part in words.split("-")) for words in options.tries.split(",")]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, rows, [(share, stages, bool(fetch)) for share, stages, fetch in tries])
    write_report(options.out, "gpu_whole", {"past": PAST, "rank": 64}, found)


if __name__ == "__main__":
    main()
