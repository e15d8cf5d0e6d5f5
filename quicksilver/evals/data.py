"""Reads the data folder: `eval/eval_pack.jsonl.xz` and the held-out part of `train/*.jsonl.xz`.

Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.hub.data_files import is_held_out, read_records

Record = Mapping[str, Any]

PACK = Path("eval") / "eval_pack.jsonl.xz"


def pack_records(data: Path, task: str) -> Sequence[Record]:
    """Return the records of one set of the pack."""
    records = _read_pack(data / PACK).get(task)
    if records is None:
        raise InvalidRequest(f"evaluation data: {PACK} has no set {task}", param="data")
    return records


@lru_cache(maxsize=1)
def _read_pack(path: Path) -> Mapping[str, Sequence[Record]]:
    """Read the whole pack, grouped by set. Cached, because most runs use many sets."""
    sets: dict[str, list[Record]] = defaultdict(list)
    for record in read_records(path):
        sets[record["task"]].append(record)
    return sets


def train_file(data: Path, name: str) -> Path:
    return data / "train" / f"{name}.jsonl.xz"


def held_out_records(data: Path, name: str) -> Iterator[Record]:
    """Yield the records of a training file whose package is held out."""
    return (record for record in read_records(train_file(data, name)) if is_held_out(record["p"]))
