"""Files of training and evaluation data, and which part of them is held out from training. Standard library only."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest

HELD_OUT_PERCENT = 6


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a `.jsonl.xz` file, in order."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except OSError as error:
        raise InvalidRequest(f"data: {error}", param="data") from error


def is_held_out(name: str) -> bool:
    """Whether a package, schema or file of this name is reserved for evaluation."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT
