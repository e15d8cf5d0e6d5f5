"""Definition of a task: a name, items from a data folder, how to build a prompt, and how to score an answer.

Tasks are plain records of functions. They use tokens only through `PromptBuilder` and the model only through `Answer`,
so each can be tested with made-up items and without a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from quicksilver.core import ConstraintSpec, FinishReason, Usage
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.text.conversation import ToolCall

Item = TypeVar("Item")

# Named metrics of one answer. Items of different kinds may have different metrics.
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Generate:
    """A request to generate text."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int = 256
    # Strings that end the answer. An answer cut by one has no usage.
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    tool_names: frozenset[str] = frozenset()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # Text that the answer must begin with. It is not part of the `Answer`.
    lead: str = ""

    @property
    def constraint(self) -> ConstraintSpec | None:
        """The forced prefix as the server applies it. A prefix that is only white space is not forced."""
        return ConstraintSpec(lead=self.lead) if self.lead.strip() else None


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A request for the log-likelihoods of continuations."""

    prompt_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    # Number of leading tokens of each continuation that are given and not scored; empty scores all tokens.
    num_given: tuple[int, ...] = ()


Ask = Generate | Likelihood


@dataclass(frozen=True, slots=True)
class Answer:
    """Text and calls of a `Generate`, or log-probabilities of a `Likelihood`."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[tuple[float, ...], ...] = ()


def means(scores: Sequence[Metrics]) -> dict[str, float]:
    """Mean of each metric over the items that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for metrics in scores:
        for name, value in metrics.items():
            columns[name].append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class Task(Generic[Item]):
    name: str
    domain: str
    # Metrics shown in the table. The first one is the main metric.
    headlines: tuple[str, ...]
    # Items of the data folder in a fixed order. Raises InvalidRequest if a file is missing.
    load: Callable[[Path], Iterable[Item]]
    ask: Callable[[Item, PromptBuilder], Ask]
    # May take seconds, because it runs on a thread. Must not keep state.
    score: Callable[[Item, Answer], Metrics]
    # Default number of items.
    limit: int = 100
    summarise: Callable[[Sequence[Metrics]], dict[str, float]] = means
    is_lower_better: bool = False
    # Take the first items instead of a sample, because the items are windows of one text.
    takes_first: bool = False
