"""The trainer process: killed at random moments, a job ends in the same bytes; `python -m` for more kills.

`python -m tests.training.service.test_program 10 result.json` kills a job ten times, compares the hashes and writes the
result.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from quicksilver.hub.files import ModelFiles
from quicksilver.training.export import commit
from quicksilver.training.service.lease import Signals
from quicksilver.training.service.program import listen, work
from quicksilver.tuning.jobs import ENDED, JOB
from quicksilver.tuning.settings import TrainerSettings
from tests.support.tuning import Shop, chat_lines, write_base

EPOCHS = {"n_epochs": 10, "batch_size": 10, "rank": 8}
NUM_STEPS = 20
LIMIT_S = 250.0
# Imports torch once; every trainer is then forked from it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["quicksilver.training.service.program"])


def train(line: bytes) -> None:
    work(TrainerSettings.decode(line), Signals())


def wait_for_step(shop: Shop, job_id: str, process: BaseProcess, least: int) -> None:
    """Until the job has reached a step or has ended."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = shop.jobs.get("", job_id)
        assert found is not None
        num_reported = shop.objects.count("", "fine_tuning_event", job_id)
        if num_reported >= least or found.status in ENDED:
            return
        assert process.is_alive(), "the trainer ended"
        time.sleep(0.01)
    raise AssertionError("the trainer does not advance")


def killed_run(home: Path, files: ModelFiles, num_kills: int, seed: int, num_events: list[int] | None = None) -> str:
    """The hash of the adapter of a job whose trainer is killed `num_kills` times. `num_events` gets the events that the
    job had at each kill."""
    rng = random.Random(seed)
    shop = Shop(home, files, checkpoint_s=0.05)
    job = shop.create(chat_lines(), hyperparameters=EPOCHS)
    for number, least in enumerate([*sorted(rng.sample(range(3, NUM_STEPS), num_kills)), 10**6]):
        # A job is given up after three trainers without progress: every other one reports a further step.
        if number % 2:
            least = max(least, shop.objects.count("", "fine_tuning_event", job.id) + 1)
        process = FORKS.Process(target=train, args=(shop.settings.encode(),))
        process.start()
        wait_for_step(shop, job.id, process, least)
        time.sleep(rng.random() * 0.1)
        process.kill()
        process.join()
        if num_events is not None and number < num_kills:
            num_events.append(shop.objects.count("", "fine_tuning_event", job.id))
        # As if the lease had run out.
        shop.objects.update("", JOB, job.id, lambda stored: replace(stored, leased_by="", leased_until=0))
    reply = shop.reply(job)
    assert reply["status"] == "succeeded", reply
    return str(reply["quicksilver"]["adapter_sha256"])


@pytest.mark.timeout(300)
def test_a_killed_trainer_ends_in_the_same_bytes(base: ModelFiles, tmp_path: Path) -> None:
    shop = Shop(tmp_path, base)
    job = shop.create(chat_lines(), hyperparameters=EPOCHS)
    shop.run()
    (home := tmp_path / "killed").mkdir()
    assert killed_run(home, base, num_kills=2, seed=5) == shop.reply(job)["quicksilver"]["adapter_sha256"]


def test_the_letters_of_the_parent_are_followed() -> None:
    reader, writer = os.pipe()
    signals = Signals()
    with os.fdopen(reader, "rb", buffering=0) as stream:
        thread = threading.Thread(target=listen, args=(stream, signals))
        thread.start()
        os.write(writer, b"b")
        assert signals.is_busy.wait(10)
        os.write(writer, b"i")
        os.close(writer)
        thread.join(10)
    assert not signals.is_busy.is_set()
    assert signals.is_stopping.is_set()


def main(num_kills: int, target: Path | None = None) -> None:
    seed, num_events, began = int(time.time()), list[int](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("base", "whole", "killed"):
            (Path(folder) / name).mkdir()
        files = write_base(Path(folder) / "base", has_canvas=False)
        whole = killed_run(Path(folder) / "whole", files, 0, 0)
        killed = killed_run(Path(folder) / "killed", files, num_kills, seed, num_events)
    print(f"undisturbed {whole}\nkilled      {killed}\nevents at the kills {num_events}", flush=True)
    assert whole == killed, "the adapters differ"
    if target is not None:
        result = {
            "undisturbed_sha256": whole,
            "killed_sha256": killed,
            "num_kills": len(num_events),
            "events_at_kills": num_events,
            "args": {"num_kills": num_kills, "seed": seed, "hyperparameters": EPOCHS, "num_steps": NUM_STEPS},
            "seconds": round(time.monotonic() - began, 1),
            "cpu": platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "commit": commit(),
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
