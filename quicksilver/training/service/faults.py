"""Faults of training data: a line, a JSON pointer, a code and a message each. The first 20 are reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from quicksilver.errors import InvalidRequest

MAX_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """`pointer` is an RFC 6901 pointer into the line; `line` counts from 1 and is 0 for the whole file."""

    line: int
    pointer: str
    code: str
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.pointer + ': ' if self.pointer else ''}{self.message}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class DataRefused(InvalidRequest):
    """The training or validation data cannot be used; `faults` has the first reasons."""

    code = "invalid_training_data"

    def __init__(self, faults: list[Fault], num_faults: int, param: str = "training_file") -> None:
        more = f" and {num_faults - 1} more" if num_faults > 1 else ""
        super().__init__(f"{faults[0]}{more}", param=param, code=faults[0].code)
        self.faults = faults


@dataclass(slots=True)
class Faults:
    """Collects faults; all are counted, the first ones are kept."""

    kept: list[Fault] = field(default_factory=list)
    count: int = 0

    def add(self, line: int, pointer: str, code: str, message: str) -> None:
        self.count += 1
        if len(self.kept) < MAX_FAULTS:
            self.kept.append(Fault(line, pointer, code, message))

    def require_none(self, param: str) -> None:
        if self.kept:
            raise DataRefused(self.kept, self.count, param)


def pointer_of(param: str | None) -> str:
    """A dotted place such as `messages.0.role` as a JSON pointer."""
    return pointer_to(param.split(".") if param else [])


def pointer_to(keys: Iterable[str | int]) -> str:
    """The JSON pointer of a place that is reached by these keys and indices."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def lone_surrogate(value: Any) -> str | None:
    """The pointer of the first text with half a surrogate pair, which JSON can write and UTF-8 cannot; None if there is
    none."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, dict):
            waiting += [((*place, key), item) for key, item in reversed(each.items())]
            if any(not _is_text(key) for key in each):
                return pointer_to(place)
        elif isinstance(each, list):
            waiting += [((*place, index), item) for index, item in reversed(list(enumerate(each)))]
        elif isinstance(each, str) and not _is_text(each):
            return pointer_to(place)
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
