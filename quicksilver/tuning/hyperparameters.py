"""Methods of fine-tuning, their hyperparameters, the bounds of each, and what `auto` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quicksilver.errors import InvalidRequest

# Methods that train; `import` registers an adapter that was trained elsewhere.
TRAINED: tuple[str, ...] = ("supervised", "dpo", "kto")
AUTO = "auto"
# Learning rates of AdamW for low-rank pairs, before the multiplier.
LEARNING_RATE = {"supervised": 4e-4, "dpo": 5e-5, "kto": 5e-5}
DEFAULT_RANK, DEFAULT_BETA = 16, 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds of one hyperparameter."""

    least: float
    most: float
    is_whole: bool = False

    def check(self, name: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.least <= value <= self.most or (self.is_whole and value != int(value)):
            kind = "a whole number" if self.is_whole else "a number"
            raise InvalidRequest(
                f"hyperparameters.{name}: {kind} from {self.least:g} to {self.most:g}, or 'auto'",
                param=f"hyperparameters.{name}",
            )


BOUNDS: dict[str, Bounds] = {
    "n_epochs": Bounds(1, 50, is_whole=True),
    "batch_size": Bounds(1, 256, is_whole=True),
    "learning_rate_multiplier": Bounds(0.01, 100),
    "beta": Bounds(0.01, 10),
    # Extension: rank of the adapter.
    "rank": Bounds(1, 64, is_whole=True),
}
# The divergence of KTO pairs each prompt with another answer of its batch.
BOUNDS_OF = {("kto", "batch_size"): Bounds(2, 256, is_whole=True)}
COMMON = ("n_epochs", "batch_size", "learning_rate_multiplier", "rank")
NAMES = {"supervised": COMMON, "dpo": (*COMMON, "beta"), "kto": (*COMMON, "beta"), "import": ()}


def checked(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of the method, `auto` where none is given. Raises InvalidRequest with the name."""
    if method not in NAMES:
        known = ", ".join(NAMES)
        raise InvalidRequest(f"method.type: one of {known}", param="method.type", code="unsupported_method")
    for name, value in given.items():
        if value is None or value == AUTO:
            continue
        if name not in NAMES[method]:
            raise InvalidRequest(f"hyperparameters.{name}: not of method {method}", param=f"hyperparameters.{name}")
        BOUNDS_OF.get((method, name), BOUNDS[name]).check(name, value)
    return {name: AUTO if given.get(name) is None else given[name] for name in NAMES[method]}


def resolved(method: str, chosen: Mapping[str, Any], num_examples: int) -> dict[str, Any]:
    """The same with a number in place of every `auto`. Small sets get more epochs and smaller batches."""
    auto = {
        "n_epochs": min(10, max(2, round(300 / max(num_examples, 1)))),
        "batch_size": min(16, max(2 if method == "kto" else 1, num_examples // 16)),
        "learning_rate_multiplier": 1.0,
        "rank": DEFAULT_RANK,
        "beta": DEFAULT_BETA,
    }
    found = {name: auto[name] if value == AUTO else value for name, value in chosen.items()}
    return {name: int(value) if BOUNDS[name].is_whole else float(value) for name, value in found.items()}
