"""`quicksilver tune` as a newcomer runs it: 200 chats of one sentence each, no option but the model.

    python -m benchmarks.tune [--chats 200] [--held-out 0] [--model nano] [--threads 0] [--out benchmarks/results]
    python -m benchmarks.tune --task orders --chats 1000 --held-out 200 --asked --device cuda

Prints JSON: date, commit, load, wall-clock and processor seconds of the command, the second at which each stage began,
and what the job measured. The command runs in a new process with an empty store; the model must be on this machine.
The wall-clock figures are meaningful on an idle machine only. Target for nano on two idle cores: 150 s.
`--held-out` adds a validation file of so many further chats. With `--asked` a server answers them with the base and
with the tuned model, and the report has the shares of answers that equal the wanted ones.

The task `orders` turns a note into an order code: names of goods, colours and sizes have codes that the model cannot
know, and the number, the customer and the delivery are taken over from the note.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.cpu_load import ROOT, server
from quicksilver.accounts.objects import open_local
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import default_home
from quicksilver.tuning.jobs import JOB, read_job

MAIN = "from quicksilver.cli import main; main()"
WORDS = {
    "mood": ["calm", "happy", "angry", "sleepy", "curious", "hungry", "proud", "shy", "brave", "tired"],
    "animal": ["cat", "dog", "fox", "owl", "bear", "crow", "wolf", "mole", "hare", "newt"],
    "place": ["garden", "kitchen", "harbour", "attic", "station", "library", "forest", "market", "bridge", "tower"],
}


def chats(num: int, seed: int = 7) -> list[str]:
    """JSON lines: a question, and an answer of one sentence whose form the model has to learn."""
    rng, lines = random.Random(seed), []
    for _ in range(num):
        chosen = {name: rng.choice(words) for name, words in WORDS.items()}
        subject, number = f"{chosen['mood']} {chosen['animal']}", rng.randint(2, 99)
        asked = f"Where is the {subject} number {number}?"
        told = f"Captain, the {subject} with number {number} waits near the old {chosen['place']} until noon."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
        lines.append(json.dumps({"messages": messages}))
    return lines


def stage_of(line: str) -> str:
    """The stage that a line of progress belongs to."""
    text = line.partition(", about")[0].partition(", loss")[0]
    return text.partition("step ")[0].rstrip(", ") or "training" if "step " in text else text


GOODS = {
    "mug": "K12", "teapot": "K31", "plate": "K07", "lamp": "L90", "chair": "F44", "stool": "F18", "rug": "T05",
    "towel": "T62", "clock": "L21", "vase": "K55", "mirror": "F73", "basket": "T29",
}  # fmt: skip
COLOURS = {"red": "RD", "blue": "BL", "green": "GN", "white": "WT", "black": "BK", "yellow": "YL", "grey": "GY"}
SIZES = {"small": 1, "medium": 2, "large": 3}
PEOPLE = ["Anna", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karin", "Leo"]
NOTES = (
    "{person} wants {count} {size} {colour} {goods}s{gift}, {delivery}.",
    "Please send {count} {colour} {goods}s ({size}) to {person}, {delivery}{gift}.",
    "{count} {goods}s for {person}: {size}, {colour}, {delivery}{gift}",
)


def orders(num: int, seed: int = 7) -> list[str]:
    """JSON lines: a note, and its order code."""
    rng, lines = random.Random(seed), []
    for _ in range(num):
        goods, colour, size = (rng.choice(list(words)) for words in (GOODS, COLOURS, SIZES))
        person, count = rng.choice(PEOPLE), rng.randint(2, 60)
        is_express, is_gift = rng.random() < 0.4, rng.random() < 0.3
        note = rng.choice(NOTES).format(
            person=person,
            count=count,
            size=size,
            colour=colour,
            goods=goods,
            delivery="by express" if is_express else "standard delivery",
            gift=" as a gift" if is_gift else "",
        )
        code = (
            f"{GOODS[goods]}/{COLOURS[colour]}{SIZES[size]} x{count} {person.upper()} {'EXP' if is_express else 'STD'}"
        )
        messages = [
            {"role": "user", "content": f"Order code for: {note}"},
            {"role": "assistant", "content": code + (" GIFT" if is_gift else "")},
        ]
        lines.append(json.dumps({"messages": messages}))
    return lines


TASKS = {"chats": chats, "orders": orders}


def exact_shares(home: Path, base: str, tuned: str, lines: list[str]) -> dict[str, float]:
    """The share of answers of the base and of the tuned model that equal those of the lines."""
    os.environ["QUICKSILVER_HOME"] = str(home)
    asked = [json.loads(line)["messages"] for line in lines]
    with server(ROOT, base) as url:
        return {name: asyncio.run(exact_share(url, model, asked)) for name, model in (("base", base), ("tuned", tuned))}


async def exact_share(url: str, model: str, asked: list[list[dict[str, str]]]) -> float:
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=16)) as client:

        async def is_exact(question: dict[str, str], answer: dict[str, str]) -> bool:
            body = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 64}
            reply = await client.post("/v1/chat/completions", json=body)
            reply.raise_for_status()
            found: str = reply.json()["choices"][0]["message"]["content"]
            return found.strip() == answer["content"]

        equal = await asyncio.gather(*(is_exact(question, answer) for question, answer in asked))
    return sum(equal) / len(equal)


def run(arguments: list[str], home: Path) -> dict[str, Any]:
    """Runs the command; its seconds, and when its stages began."""
    stages: dict[str, float] = {}
    first_estimate = None
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-c", MAIN, "tune", *arguments]
    environment = {**os.environ, "QUICKSILVER_HOME": str(home)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stderr:
        now = round(time.perf_counter() - start, 1)
        print(f"{now:7.1f} {line}", end="", file=sys.stderr, flush=True)
        if " left" in line:
            first_estimate = first_estimate or {"at_s": now, "line": line.strip()}
            stages.setdefault(stage_of(line.strip()), now)
    shown = process.stdout.read()
    if process.wait():
        raise SystemExit(shown)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "first_estimate": first_estimate,
        "stages_begin_s": stages,
        "output": shown.splitlines(),
    }


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    (folder / "models").symlink_to(default_home() / "models")
    lines = TASKS[given.task](given.chats + given.held_out)
    data, held_out = folder / "data.jsonl", folder / "held-out.jsonl"
    data.write_text("\n".join(lines[: given.chats]) + "\n")
    held_out.write_text("\n".join(lines[given.chats :]) + "\n")
    arguments = [str(data), "--model", given.model, "--threads", str(given.threads), "--device", given.device]
    arguments += ["--validation", str(held_out)] if given.held_out else []
    figures = run(arguments, folder)
    store = open_local(folder / "objects.db")
    (stored,) = store.find("", JOB, limit=2) or []
    job = read_job("", stored)
    store.close()
    reply = job.reply
    asked = given.asked and exact_shares(folder, given.model, reply["fine_tuned_model"], lines[given.chats :])
    return {
        **figures,
        **({"exact": asked} if asked else {}),
        "threads": job.facts["threads"],
        "hyperparameters": reply["hyperparameters"],
        "trained_tokens": reply["trained_tokens"],
        "measured": reply["quicksilver"],
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--chats", type=int, default=200)
    words.add_argument("--held-out", type=int, default=0)
    words.add_argument("--model", default="nano")
    words.add_argument("--threads", type=int, default=0)
    words.add_argument("--task", choices=tuple(TASKS), default="chats")
    words.add_argument("--asked", action="store_true", help="ask the base and the tuned model for the held-out answers")
    words.add_argument("--device", default="cpu")
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    if given.asked and not given.held_out:
        words.error("--asked needs --held-out")
    facts, load = machine_facts(), [round(each, 2) for each in os.getloadavg()]
    with tempfile.TemporaryDirectory() as folder:
        results = measure(given, Path(folder))
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    cpu = torch.cpu.get_capabilities()
    gpu = {"gpu": torch.cuda.get_device_name()} if given.device != "cpu" and torch.cuda.is_available() else {}
    hardware = {"cpu": cpu["cpu_name"], "cores": os.cpu_count(), "torch": torch.__version__, **gpu}
    priority = {"niceness": os.nice(0), "policy": os.sched_getscheduler(0)}
    loads = {"load_before": load, "load_after": [round(each, 2) for each in os.getloadavg()]}
    text = json.dumps({**facts, **hardware, **priority, **loads, "settings": settings, **results}, indent=1)
    print(text)
    if given.out:
        name = f"tune-{facts['date'][:10]}" if not gpu else f"tune-gpu-{given.model}-{facts['date'][:10]}"
        (given.out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
