"""The rows of one run as JSON. The file is rewritten after every row, so an interrupted run keeps its rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Book:
    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self._started = folder, time.perf_counter()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self._path = folder / f"gpu_coder-{stamp}.json"
        self.facts = {"benchmark": "gpu_coder", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts}
        self.sections: dict[str, list[dict[str, Any]]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self._started:6.1f} s  {text}", flush=True)

    def add(self, section: str, row: dict[str, Any]) -> None:
        self.sections.setdefault(section, []).append(row)
        self._path.write_text(json.dumps({**self.facts, "sections": self.sections}, indent=1) + "\n")
        self.say(f"{section}: " + "  ".join(f"{name} {_short(value)}" for name, value in row.items()))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
