"""Token counts of a reply in the forms of both APIs: Mercury's five flat keys and OpenAI's detail objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from quicksilver.core import Usage
from quicksilver.text.answer import AnswerPiece, Finished, TextDelta


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    """Of a request with a prediction also how many of its tokens are part of the answer, and how many are not."""

    reasoning_tokens: int
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class LegReply(TypedDict):
    """One target that hybrid routing tried or skipped. Counts are those of answers; `evidence` is what the gate
    compared."""

    target: str
    outcome: Literal["answered", "escalated", "failed", "skipped"]
    reason: NotRequired[str]
    prompt_tokens: NotRequired[int]
    cached_tokens: NotRequired[int]
    completion_tokens: NotRequired[int]
    evidence: NotRequired[dict[str, float | bool]]


class EngineWork(TypedDict):
    """Extension: the engine's work. A forward is one pass of the model in which this request had rows; a round is one
    draft of `verify` with its verification. `migrated` counts how often the request was continued in another engine
    worker because its own had ended."""

    forwards: int
    tokens_per_forward: float
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    migrated: int
    # Only if the model is `auto`.
    legs: NotRequired[list[LegReply]]


class UsageReply(TypedDict):
    """`completion_tokens` includes the reasoning, so `total_tokens` is the sum of prompt and completion."""

    prompt_tokens: int
    reasoning_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_input_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    quicksilver: EngineWork


class SpeculativeDecoding(TypedDict):
    """vLLM's counts of one request: `acceptance_histogram[i]` drafts had i accepted tokens."""

    acceptance_histogram: list[int]
    mean_acceptance_length: float
    draft_acceptance_rate: float
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: int


class ReplyMetrics(TypedDict):
    speculative_decoding: SpeculativeDecoding


class MetricsField(TypedDict, total=False):
    metrics: ReplyMetrics


class PredictionReply(TypedDict, total=False):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


def metrics_field(finished: Sequence[Finished]) -> MetricsField:
    """`metrics` of a reply with one answer that `verify` generated; empty for any other reply."""
    usage = finished[0].usage if len(finished) == 1 else Usage()
    num_steps = sum(usage.acceptance)
    if not num_steps:
        return {}
    return {
        "metrics": {
            "speculative_decoding": {
                "acceptance_histogram": list(usage.acceptance),
                "mean_acceptance_length": round(1 + usage.accepted / num_steps, 4),
                "draft_acceptance_rate": round(usage.accepted / max(usage.drafted, 1), 4),
                "num_accepted_draft_tokens": usage.accepted,
                "num_draft_tokens": usage.drafted,
                "num_spec_steps": num_steps,
                "num_spec_tokens": len(usage.acceptance) - 1,
            }
        }
    }


def prediction_reply(finished: Sequence[Finished]) -> PredictionReply:
    total = sum(each.usage.prediction_tokens for each in finished)
    if not total:
        return {}
    accepted = min(sum(each.usage.predicted for each in finished), total)
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": total - accepted}


class RunningUsage:
    """The counts of a stream so far, for chunks that carry them."""

    def __init__(self, num_prompt_tokens: Sequence[int], num_answers: int) -> None:
        self._answers = [Finished(usage=Usage(prompt_tokens=count)) for count in num_prompt_tokens]
        self._num_answers = num_answers

    def observe(self, index: int, piece: AnswerPiece) -> UsageReply:
        """The counts with this piece."""
        if isinstance(piece, Finished):
            self._answers[index] = piece
        elif isinstance(piece, TextDelta):
            self._answers[index] = Finished(usage=piece.add_to(self._answers[index].usage))
        return usage_reply(self._answers, self._num_answers)


def usage_reply(finished: Sequence[Finished], num_answers: int = 1) -> UsageReply:
    """`finished` holds `num_answers` entries per prompt, prompt by prompt. A prompt counts once."""
    prompts = [each.usage for each in finished[::num_answers]]
    prompt, cached = sum(u.prompt_tokens for u in prompts), sum(u.cached_tokens for u in prompts)
    completion = sum(each.usage.completion_tokens for each in finished)
    reasoning = sum(each.num_reasoning for each in finished)
    forwards = sum(each.usage.forwards for each in finished)
    return {
        "prompt_tokens": prompt,
        "reasoning_tokens": reasoning,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cached_input_tokens": cached,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning, **prediction_reply(finished)},
        "quicksilver": {
            "forwards": forwards,
            "tokens_per_forward": round(completion / forwards, 3) if forwards else 0.0,
            "rounds": sum(each.usage.rounds for each in finished),
            "drafted_tokens": sum(each.usage.drafted for each in finished),
            "accepted_tokens": sum(each.usage.accepted for each in finished),
            "migrated": sum(each.usage.migrated for each in finished),
        },
    }
