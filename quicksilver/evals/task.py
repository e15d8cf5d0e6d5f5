"""What a task is: a name, items from a data folder, how to ask about one, and how to score the answer.

Tasks are plain records of functions. They know tokens only through the Writer and the model only through Answers, so
each can be tested with made-up items and no model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from quicksilver.core import ConstraintSpec, FinishReason, Usage
from quicksilver.evals.writer import Writer
from quicksilver.text.conversation import ToolCall

Item = TypeVar("Item")

Metrics = Mapping[str, float]
"""Named numbers of one answer. A task may give different names to items of different kinds."""


@dataclass(frozen=True, slots=True)
class Generate:
    """A text to be written."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Strings that end the answer; an answer cut by one has no usage."""
    stop_ids: tuple[int, ...] = ()
    tool_names: frozenset[str] = frozenset()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    lead: str = ""
    """What the answer begins with; it is no part of the Answer."""

    @property
    def constraint(self) -> ConstraintSpec | None:
        """As serving has it: a mere space is said unasked, or left out rightly."""
        return ConstraintSpec(lead=self.lead) if self.lead.strip() else None


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Continuations whose log-likelihoods are wanted."""

    prompt_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    num_given: tuple[int, ...] = ()
    """How many tokens at the start of each continuation are given, not scored; empty scores all."""


Ask = Generate | Likelihood


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: text and calls of a Generate, log-probabilities of a Likelihood."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[tuple[float, ...], ...] = ()


def means(scores: Sequence[Metrics]) -> dict[str, float]:
    """The mean of every named number over the items that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for metrics in scores:
        for name, value in metrics.items():
            columns[name].append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class Task(Generic[Item]):
    name: str
    domain: str
    headlines: tuple[str, ...]
    """The numbers that stand in the table, the first of them for the task."""
    load: Callable[[Path], Iterable[Item]]
    """Items from the data folder, in an order that never changes. Raises InvalidRequest where a file is missing."""
    ask: Callable[[Item, Writer], Ask]
    score: Callable[[Item, Answer], Metrics]
    """May run for seconds (it is called on a thread); must not keep state."""
    limit: int = 100
    """Items taken when nobody says otherwise."""
    summarise: Callable[[Sequence[Metrics]], dict[str, float]] = means
    is_lower_better: bool = False
    takes_first: bool = False
    """Items are windows of one text: a limit takes the first of them instead of a sample."""
