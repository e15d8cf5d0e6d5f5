"""Decoding on a CPU: every decoder and number format against the machine's ceilings and against llama.cpp, in one run.

    python -m benchmarks.cpu_decode [--model nano] [--schemes int8] [--canvases 4,8,16] [--tokens 96] [--llama-cpp]

Answers end where the model ends them. llama.cpp runs before and after, and the better of its two figures counts. It is
the server of PyPI's xllamacpp in .build/llama-cpp: --llama-cpp installs it if it is missing, --no-llama-cpp leaves it
out, and without either it runs if it is installed. Also: seconds to the first token of a prompt of 200 tokens, and to a
loaded model in a fresh process. Writes dated JSON into benchmarks/results/. Compare ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from quicksilver.core import DecodeParams, DecoderName, DecoderParams
from quicksilver.engine.load import LoadConfig
from quicksilver.hub.resolve import resolve
from quicksilver.llm import LLM
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent
PROMPTS = (
    "Write a Python function that adds two numbers.",
    "Write a JavaScript function that returns the larger of two numbers.",
    "Write a Python class Stack with the methods push, pop and is_empty.",
    'Reply with JSON only: an object with the keys "city", "country" and "population" for Paris.',
    "Reply with JSON only: a list of three people, each with a name, an age and a city.",
)
SHOWN = ("scheme", "decoder", "tokens_per_s", "tokens_per_forward", "first_token_ms", "over_own_ar", "over_llama_cpp")
LOAD = "import sys; from quicksilver.llm import LLM; LLM(sys.argv[1])"
FIRST_TOKEN_PROMPT = 200
LLAMA_CPP, LLAMA_PACKAGE = ROOT.parent / ".build" / "llama-cpp", "xllamacpp==2026.10.11549"


@dataclass(frozen=True)
class Speed:
    """One decoder under one weight format, over all prompts."""

    scheme: str
    decoder: str
    tokens: int
    forwards: int
    rows: int
    seconds: float
    first_token_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def measure(llm: LLM, scheme: str, params: DecodeParams) -> Speed:
    first_token_s = first_token(llm, params)
    llm.chat(PROMPTS[0], replace(params, max_new_tokens=4))
    llm.engine.pool.clear_cache()
    tokens = forwards = rows = 0
    start = time.perf_counter()
    for prompt in PROMPTS:
        usage = llm.chat(prompt, params).usage
        tokens, forwards, rows = tokens + usage.completion_tokens, forwards + usage.forwards, rows + usage.rows
    seconds = time.perf_counter() - start
    name = f"{params.decoder.name} {params.decoder.canvas_len}" if params.decoder.canvas_len > 1 else "ar"
    return Speed(scheme, name, tokens, forwards, rows, seconds, first_token_s)


def first_token(llm: LLM, params: DecodeParams) -> float:
    """Seconds from an uncached prompt to its first token, best of three."""
    ids = (llm.tokenizer.encode("The quick brown fox jumps over the lazy dog. ") * FIRST_TOKEN_PROMPT)[
        :FIRST_TOKEN_PROMPT
    ]

    def run() -> None:
        llm.engine.pool.clear_cache()
        next(iter(llm.stream(ids, replace(params, max_new_tokens=16))))

    return best_of(3, run)


def decoders(canvases: list[int]) -> list[DecoderParams]:
    verify = [DecoderParams(name=DecoderName.VERIFY, canvas_len=length) for length in canvases]
    return [
        DecoderParams(name=DecoderName.AR, canvas_len=1),
        *verify,
        DecoderParams(name=DecoderName.CONFIDENCE, canvas_len=8),
    ]


def speeds(args: argparse.Namespace) -> Iterator[Speed]:
    for scheme in args.schemes.split(","):
        llm = LLM(args.model, LoadConfig(device="cpu", weights=scheme, threads=args.threads))
        for decoder in decoders([int(length) for length in args.canvases.split(",")]):
            speed = measure(llm, scheme, DecodeParams(args.tokens, stop_ids=llm.tokenizer.eos_ids, decoder=decoder))
            print(speed, flush=True)
            yield speed


def load_cost(model: str) -> dict[str, float]:
    """Load time and peak memory of a new process. The files are in the page cache."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", LOAD, model], check=True)
    seconds = time.perf_counter() - start
    return {"load_s": round(seconds, 2), "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024}


def best_of(repeats: int, work: torch.nn.Module | object) -> float:
    """Seconds of the quickest of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times)


def ceilings() -> dict[str, float]:
    """Peak rates of this machine: memory copy and float32 matrix products."""
    torch.set_num_threads(os.cpu_count() or 1)  # the compiled backend sets it to one
    source = torch.randn(64 << 20)
    target = torch.empty_like(source)
    a = torch.randn(1024, 1024)
    copy_s = best_of(5, lambda: target.copy_(source))
    matmul_s = best_of(5, lambda: a @ a)
    return {"copy_gb_per_s": 2 * source.numel() * 4 / copy_s / 1e9, "matmul_gflops": 2 * 1024**3 / matmul_s / 1e9}


def processor_name() -> str:
    """As Linux names it, with family and model, because virtual machines shorten the name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = dict(reversed([map(str.strip, line.split(":", 1)) for line in lines if ":" in line]))
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def llama_cpp(model: str, num_tokens: int, threads: int) -> float | None:
    """Tokens per second of llama.cpp on the same base file and prompts, or None if it is not installed."""
    tokenizer = Tokenizer.for_model(resolve(model).weights, None)
    template = ChatTemplate.for_tokenizer(tokenizer)
    texts = [tokenizer.decode(template.render([Message("user", text)]).ids) for text in PROMPTS]
    answers = run_llama_cpp(model, texts, num_tokens, threads)
    return sum(a["tokens"] for a in answers) / sum(a["seconds"] for a in answers) if answers else None


def peer(args: argparse.Namespace) -> float | None:
    return None if args.llama_cpp is False else llama_cpp(args.model, args.tokens, args.threads)


def has_llama_cpp() -> bool:
    return (LLAMA_CPP / "installed").exists()


def install_llama_cpp() -> None:
    """From the package index, unless it is installed."""
    if not has_llama_cpp():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(LLAMA_CPP)], check=True)
        subprocess.run(
            [str(LLAMA_CPP / "bin" / "python"), "-m", "pip", "install", "--quiet", LLAMA_PACKAGE], check=True
        )
        (LLAMA_CPP / "installed").touch()


def run_llama_cpp(
    model: str, prompts: list[str], num_tokens: int, threads: int, streams: int = 1
) -> list[dict[str, float]] | None:
    if not has_llama_cpp():
        print("llama.cpp left out: python -m benchmarks.cpu_decode --llama-cpp installs it")
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts, file)
        file.flush()
        settings = [str(resolve(model).weights), str(num_tokens), str(threads), file.name, str(streams)]
        command = [str(LLAMA_CPP / "bin" / "python"), str(ROOT / "llama_cpp.py"), *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def report(results: list[Speed], theirs: float | None) -> list[dict[str, object]]:
    own_ar = {speed.scheme: speed.tokens_per_s for speed in results if speed.decoder == "ar"}
    rows: list[dict[str, object]] = []
    for speed in results:
        rows.append(
            {
                **asdict(speed),
                "tokens_per_s": round(speed.tokens_per_s, 2),
                "tokens_per_forward": round(speed.tokens / speed.forwards, 3),
                "rows_per_s": round(speed.rows / speed.seconds, 1),
                "first_token_ms": round(1e3 * speed.first_token_s, 1),
                "over_own_ar": round(speed.tokens_per_s / own_ar[speed.scheme], 3),
                "over_llama_cpp": round(speed.tokens_per_s / theirs, 3) if theirs else None,
            }
        )
        print({key: rows[-1][key] for key in SHOWN})
    return rows


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--model", default="nano")
    words.add_argument("--schemes", default="int8")
    words.add_argument("--canvases", default="4,8,16")
    words.add_argument("--tokens", type=int, default=96)
    words.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    words.add_argument("--llama-cpp", action=argparse.BooleanOptionalAction, help="install and run llama.cpp")
    words.add_argument("--out", type=Path, default=ROOT / "results")
    args = words.parse_args()
    if args.llama_cpp:
        install_llama_cpp()
    load = load_cost(args.model)
    before = peer(args)
    results = list(speeds(args))
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    after = peer(args)
    theirs = max(before, after) if before and after else None
    summary = {
        "model": args.model,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {os.cpu_count()} cores, {args.threads} used",
        "load_average": os.getloadavg()[0],
        "niceness": os.nice(0),
        "torch": torch.__version__,
        "commit": commit(),
        "ceilings": ceilings(),
        "llama_cpp_tokens_per_s": theirs,
        "llama_cpp_before_and_after": [before, after],
        **load,
        "peak_mb_with_answers": memory_mb,
        "results": report(results, theirs),
    }
    print(load, "llama.cpp", before, after)
    args.out.mkdir(exist_ok=True)
    path = args.out / f"cpu_decode-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
