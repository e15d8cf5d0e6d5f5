"""Log-probabilities of options -> calibrated answers, in OpenAI's and in TypeSafe's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quicksilver.server.endpoints.decisions.calibration import Calibration
from quicksilver.server.endpoints.decisions.wire import (
    ChoiceAnswer,
    ChoiceQuestion,
    DecisionBody,
    DecisionReply,
    DecisionUsage,
    NamedChoiceAnswer,
    NamedChoiceQuestion,
    NamedQuestion,
    NoulAnswer,
    NoulQuestion,
    PredicateAnswer,
    PredicateQuestion,
    RubricAnswer,
    ScoreAnswer,
    SystemOneBody,
    SystemOneReply,
    TypedQuestion,
)
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import ReplyFormat
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished

Shares = Sequence[float]


def best_of(shares: Shares) -> int:
    """The first of the likeliest options."""
    return max(range(len(shares)), key=shares.__getitem__)


def mean_level(shares: Shares) -> float:
    return sum(level * share for level, share in enumerate(shares))


class DecidingFormat(ReplyFormat):
    """What both forms share; neither is streamed."""

    def __init__(self, plan: ReplyPlan, calibration: Calibration) -> None:
        self._plan = plan
        self._calibration = calibration

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[Mapping[str, Any]]:
        return ()

    def shares(self, answer: CollectedAnswer) -> list[Shares]:
        return [self._calibration.probabilities(logprobs) for logprobs in answer.decided]


class DecisionFormat(DecidingFormat):
    def __init__(self, plan: ReplyPlan, body: DecisionBody, calibration: Calibration) -> None:
        super().__init__(plan, calibration)
        self._questions = body.questions

    def whole(self, answers: Sequence[CollectedAnswer]) -> DecisionReply:
        pairs = zip(self._questions, self.shares(answers[0]), strict=True)
        return {
            "model": self._plan.model,
            "answers": [typed_answer(question, shares) for question, shares in pairs],
            "usage": decision_usage(answers[0].finished),
        }


class SystemOneFormat(DecidingFormat):
    def __init__(self, plan: ReplyPlan, body: SystemOneBody, calibration: Calibration) -> None:
        super().__init__(plan, calibration)
        self._questions = body.questions

    def whole(self, answers: Sequence[CollectedAnswer]) -> SystemOneReply:
        pairs = zip(self._questions.items(), self.shares(answers[0]), strict=True)
        return {
            "model": self._plan.model,
            "answers": {name: named_answer(question, shares) for (name, question), shares in pairs},
            "usage": decision_usage(answers[0].finished),
        }


def typed_answer(question: TypedQuestion, shares: Shares) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    if isinstance(question, PredicateQuestion):
        return {"type": "predicate", "name": question.name, "probability": shares[0]}
    if isinstance(question, ChoiceQuestion):
        values = [option.value for option in question.choices]
        return {
            "type": "choice",
            "name": question.name,
            "choice": values[best_of(shares)],
            "confidence": max(shares),
            "probabilities": [{"value": v, "probability": p} for v, p in zip(values, shares, strict=True)],
        }
    labels = [level.label for level in question.levels]
    return {
        "type": "score",
        "name": question.name,
        "score": mean_level(shares),
        "confidence": max(shares),
        "probabilities": [
            {"value": i, "label": label, "probability": p}
            for i, (label, p) in enumerate(zip(labels, shares, strict=True))
        ],
    }


def named_answer(question: NamedQuestion, shares: Shares) -> NoulAnswer | NamedChoiceAnswer | RubricAnswer:
    if isinstance(question, NoulQuestion):
        return {"type": "noul", "noul": shares[0]}
    if isinstance(question, NamedChoiceQuestion):
        labels = list(question.criteria)
        return {
            "type": "choice",
            "choice": labels[best_of(shares)],
            "confidence": max(shares),
            "probabilities": dict(zip(labels, shares, strict=True)),
        }
    return {
        "type": "score",
        "score": mean_level(shares),
        "confidence": max(shares),
        "legend": {str(i): text for i, text in enumerate(question.criteria)},
        "probabilities": {str(i): share for i, share in enumerate(shares)},
    }


def decision_usage(finished: Finished) -> DecisionUsage:
    usage = finished.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
