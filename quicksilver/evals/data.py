"""Reading the data folder: `eval/eval_pack.jsonl.xz` and the held-out side of `train/*.jsonl.xz`.

Standard library only. Training holds packages out by a hash of their name; the same rule stands here, and a test keeps
the two equal, because neither room may import the other.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest

Row = Mapping[str, Any]

PACK = Path("eval") / "eval_pack.jsonl.xz"
HELD_OUT_PERCENT = 6
BY_PACKAGE = ("code_python", "code_js_ts", "edits_python")
WHOLE = ("tools_sgd_dev", "tools_sgd_test")


def is_held_out(name: str) -> bool:
    """Whether a package of this name was kept from training."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a `.jsonl.xz` file, in order."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except OSError as error:
        raise InvalidRequest(f"evaluation data: {error}", param="data") from error


def pack_rows(data: Path, task: str) -> Sequence[Row]:
    """The rows of one set of the pack."""
    rows = _read_pack(data / PACK).get(task)
    if rows is None:
        raise InvalidRequest(f"evaluation data: {PACK} has no set {task}", param="data")
    return rows


@lru_cache(maxsize=1)
def _read_pack(path: Path) -> Mapping[str, Sequence[Row]]:
    """The whole pack by set; kept, because most runs ask for many of its sets."""
    sets: dict[str, list[Row]] = defaultdict(list)
    for row in read_rows(path):
        sets[row["task"]].append(row)
    return sets


def train_file(data: Path, name: str) -> Path:
    return data / "train" / f"{name}.jsonl.xz"


def held_out_rows(data: Path, name: str) -> Iterator[Row]:
    """The rows of a training file whose package was kept from training."""
    return (row for row in read_rows(train_file(data, name)) if is_held_out(row["p"]))


def copy_held_out(data: Path, target: Path) -> list[Path]:
    """A small data folder with all that evaluations read and nothing else, for a machine that has no data."""
    written = [target / PACK, *(train_file(target, name) for name in (*BY_PACKAGE, *WHOLE))]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data / PACK, target / PACK)
    for name in WHOLE:
        shutil.copyfile(train_file(data, name), train_file(target, name))
    for name in BY_PACKAGE:
        with lzma.open(train_file(target, name), "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in held_out_rows(data, name))
    return written
