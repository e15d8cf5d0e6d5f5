"""Which linear is fastest on this CPU: every way of holding SmolLM2-135M's weights, at 1 to 64 rows, as ratios to fp32.

    python -m benchmarks.cpu_linear [--threads 2] [--seconds 1] [--kinds float32,int4] [--out benchmarks/results]

One number is the time of all linears of one forward, head included. A kind is exact in rows when a row's bits are the
same for every number of rows from 1 to 64; `tiles` means it is so in whole tiles of four.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from quicksilver.model.formats.quantise import make_linear, quantise_weight
from quicksilver.model.formats.quantised import pack_int8

ROWS = (1, 4, 8, 16, 64)
LAYER = ((576, 960), (576, 576), (576, 3072), (1536, 576))
HEAD = (576, 49152)
NUM_LAYERS = 30

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    ms: dict[int, float]
    """By number of rows."""
    error: float
    """Of the head's output, relative to fp32."""
    exact_in_rows: str


def bfloat16(weight: Tensor) -> Linear:
    held = weight.bfloat16()
    return lambda x: linear(x.bfloat16(), held).float()


def one_scale(weight: Tensor) -> Linear:
    """torch's dynamic int8: one activation scale for all rows, so rows are not independent."""
    stored = quantise_weight(weight, None, "int8")
    packed = pack_int8(stored["q"], stored["scale"])
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, False)


def ours(scheme: str, weight: Tensor) -> Linear:
    return make_linear(quantise_weight(weight, None, scheme), scheme)


KINDS: dict[str, Callable[[Tensor], Linear]] = {
    "float32": lambda weight: partial(linear, weight=weight),
    "bfloat16": bfloat16,
    "int8": partial(ours, "int8"),
    "int8-dynamic": partial(ours, "int8-dynamic"),
    "int8-dynamic, one scale": one_scale,
    "int4": partial(ours, "int4"),
}


def best_ms(body: Callable[[], object], seconds: float) -> float:
    """Minimum of many runs, because other load only adds time. Single-threaded runs use processor time."""
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.thread_time
    body()
    times, until = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = clock()
        body()
        times.append(clock() - start)
    return 1e3 * min(times)


def exactness(head: Linear, x: Tensor) -> str:
    whole = head(x)
    bad = [rows for rows in range(1, len(x)) if not torch.equal(head(x[:rows]), whole[:rows])]
    if not bad:
        return "yes"
    return "tiles" if all(rows % 4 for rows in bad) else "no"


@torch.inference_mode()
def measure(kind: str, seconds: float) -> Result:
    torch.manual_seed(0)
    make = KINDS[kind]
    linears = [(shape, make(torch.randn(shape[1], shape[0]) * 0.05)) for _ in range(NUM_LAYERS) for shape in LAYER]
    weight = torch.randn(HEAD[1], HEAD[0]) * 0.05
    linears.append((HEAD, make(weight)))
    x = torch.randn(64, HEAD[0])
    wanted, found = linear(x, weight), linears[-1][1](x)
    ms = {}
    for rows in ROWS:
        inputs = {size: torch.randn(rows, size) for size in (576, 1536)}
        ms[rows] = best_ms(lambda inputs=inputs: [held(inputs[shape[0]]) for shape, held in linears], seconds)
    error = float((found - wanted).norm() / wanted.norm())
    return Result(ms, error, exactness(linears[-1][1], x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement; more on a busy machine")
    parser.add_argument("--kinds", default=",".join(KINDS).replace(", ", " "))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", message=".*deprecated")
    wanted = {kind.replace(" one scale", ", one scale") for kind in args.kinds.split(",")}
    found: dict[str, Result] = {}
    for kind in KINDS:
        if kind in wanted:
            found[kind] = measure(kind, args.seconds)
            print_line(kind, found[kind], found.get("float32"))
    write(args.out, args.threads, found)


def print_line(kind: str, result: Result, base: Result | None) -> None:
    cells = [f"{rows}: {result.ms[rows]:6.1f} ms" for rows in ROWS]
    if base is not None:
        cells = [f"{cell} ({base.ms[rows] / result.ms[rows]:.1f}x)" for cell, rows in zip(cells, ROWS, strict=True)]
    print(f"{kind:24} error {result.error:.4f}  exact {result.exact_in_rows:5}  {'  '.join(cells)}", flush=True)


def write(folder: Path, threads: int, found: dict[str, Result]) -> None:
    day = datetime.now(UTC).date().isoformat()
    facts = {
        "date": day,
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vnni": torch.cpu._is_vnni_supported(),
        "torch": torch.__version__,
        "threads": threads,
        "load": os.getloadavg()[0],
        "kinds": {kind: asdict(result) for kind, result in found.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"cpu-linear-{day}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"written to {path}")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
