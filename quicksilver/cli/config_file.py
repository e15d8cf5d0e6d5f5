"""The TOML file of `serve` as a table. Nothing of the server is imported, so a file with a fault is refused at once."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest

FLAG, VARIABLE = "--config", "QUICKSILVER_CONFIG"


def parse_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="config") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="config") from error


def check_syntax(words: Sequence[str]) -> None:
    """Refuses a file that cannot be read or parsed. `words` are the arguments of the command line."""
    after_flag = [after for word, after in pairwise(words) if word == FLAG]
    after_sign = [word.partition("=")[2] for word in words if word.startswith(f"{FLAG}=")]
    path = (after_flag or after_sign or [os.environ.get(VARIABLE, "")])[-1]
    if path and "--help" not in words:
        parse_file(Path(path))
