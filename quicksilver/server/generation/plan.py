"""ReplyPlan: everything that is decided about a reply before the engine is called, and the parts it is built from.

An endpoint's plan module turns its body into an AnswerRequest per prompt and calls `plan_reply`. Wire fields become
core.DecodeParams here: an absent field keeps its default, and a value that the engine cannot honour is refused.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Self

from quicksilver.core import (
    CommitRule,
    ConstraintSpec,
    DecodeParams,
    DecoderName,
    DecoderParams,
    EngineClient,
    EngineInfo,
    FinishReason,
    Request,
    Usage,
)
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.generation.usage import metrics_field, usage_reply
from quicksilver.server.http.fields import DecoderBody, PredictionBody, join_text
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, AnswerReader, Finished, ReadOptions
from quicksilver.text.tokenizer import Tokenizer

# Canvas length of a `realtime` request: a smaller canvas commits its first token sooner.
REALTIME_CANVAS_LEN = 8
# Most fields that a warning names, and characters of each name.
MAX_NAMES, MAX_NAME_CHARS = 8, 64


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One answer to generate, and how its tokens are read."""

    request: Request
    options: ReadOptions = field(default_factory=ReadOptions)

    @property
    def num_prompt_tokens(self) -> int:
        """Input tokens to charge."""
        return len(self.request.prompt_ids)

    def numbered(self, request_id: str, seed_offset: int) -> Self:
        """The same request under an id of its own, with another seed."""
        params = replace(self.request.params, seed=self.request.params.seed + seed_offset)
        return replace(self, request=replace(self.request, id=request_id, params=params))

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        """The answer, ending with `Finished`. Closing the generator, or a stop string, aborts the engine's request."""
        if not self.request.params.max_new_tokens:
            yield Finished(FinishReason.LENGTH, Usage(len(self.request.prompt_ids)))
            return
        reader = AnswerReader(self.request, self.options, tokenizer)
        async with aclosing(engine.stream(self.request)) as events:  # type: ignore[type-var]
            async for event in events:
                for piece in reader.read(event):
                    yield piece
                if reader.is_finished:
                    return


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """One reply to make, which may hold several answers."""

    id: str
    model: str
    created: int
    # Prompt by prompt, `num_answers` to each.
    answers: tuple[AnswerRequest, ...]
    num_answers: int = 1
    warning: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """A prompt counts once, however many answers are made to it."""
        return sum(answer.num_prompt_tokens for answer in self.answers[:: self.num_answers])

    @property
    def max_output_tokens(self) -> int:
        return sum(answer.request.params.max_new_tokens for answer in self.answers)


def plan_reply(
    prefix: str, model: str, answers: Sequence[AnswerRequest], num_answers: int = 1, warning: str | None = None
) -> ReplyPlan:
    """`num_answers` copies of every answer request, each with its own id and seed."""
    reply_id = f"{prefix}-{uuid.uuid4()}"
    offsets = [(answer, offset) for answer in answers for offset in range(num_answers)]
    numbered = tuple(answer.numbered(f"{reply_id}/{i}", offset) for i, (answer, offset) in enumerate(offsets))
    return ReplyPlan(reply_id, model, int(time.time()), numbered, num_answers, warning)


def add_warning(warning: str | None, added: str | None) -> str | None:
    return "; ".join(filter(None, (warning, added))) or None


def with_ignored(plan: ReplyPlan, ignored: Sequence[str]) -> ReplyPlan:
    """The plan with a warning that names the fields that were ignored."""
    if not ignored:
        return plan
    names = ", ".join(name[:MAX_NAME_CHARS] for name in ignored[:MAX_NAMES])
    more = f" and {len(ignored) - MAX_NAMES} more" if len(ignored) > MAX_NAMES else ""
    return replace(plan, warning=add_warning(plan.warning, f"ignored fields: {names}{more}"))


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """How many tokens an answer may have, and a warning if that is less than the caller asked for, or if the engine has
    one."""

    max_new_tokens: int
    warning: str | None = None


def limit_tokens(num_prompt: int, requested: int | None, services: Services, param: str) -> TokenLimit:
    """A limit beyond the context is lowered, with a warning; a prompt that fills the context is refused."""
    context_len, warning = services.engine.info.context_len, services.engine.info.warning or None
    left = context_len - num_prompt
    if left < (requested != 0):
        raise ContextTooLong(
            f"The prompt has {num_prompt} tokens; this model's context is {context_len} tokens, answer included.",
            param=param,
        )
    if requested is not None and requested > left:
        lowered = f"max_tokens was lowered to {left}, the room left in this model's context"
        return TokenLimit(left, add_warning(lowered, warning))
    return TokenLimit(min(services.config.card.max_output_len if requested is None else requested, left), warning)


def read_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def with_given(defaults: DecodeParams, given: Mapping[str, Any]) -> DecodeParams:
    """`defaults` with the fields that were given; None counts as absent."""
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def read_seed(seed: int | None) -> int:
    """The caller's seed, or a random one."""
    return secrets.randbelow(2**53) if seed is None else seed


def read_top_k(top_k: int | None) -> int | None:
    """-1 and 0 both keep every token."""
    return None if top_k is None else max(top_k, 0)


def read_logit_bias(bias: Mapping[str, float] | None, info: EngineInfo) -> dict[int, float] | None:
    """Ids are checked against the width of the logits, so that no request can index beyond them."""
    if bias is None:
        return None
    by_id = {int(token): value for token, value in bias.items()}
    if by_id and max(by_id) >= info.vocab_size:
        raise InvalidRequest(f"logit_bias: token ids end at {info.vocab_size - 1}", param="logit_bias")
    return by_id


def read_stop_ids(ids: Sequence[int] | None, info: EngineInfo, param: str = "stop_ids") -> tuple[int, ...] | None:
    if ids and max(ids) >= info.vocab_size:
        raise InvalidRequest(f"{param}: token ids end at {info.vocab_size - 1}", param=param)
    return None if ids is None else tuple(ids)


async def read_prediction(prediction: PredictionBody | None, services: Services, tenant: str) -> tuple[int, ...]:
    """The tokens of a predicted output; what could not fit into the context is dropped."""
    if prediction is None:
        return ()
    (ids,) = await services.prompts.encode([join_text(prediction.content)], tenant, "prediction")
    return ids[: services.engine.info.context_len]


@dataclass(frozen=True, slots=True)
class EndRules:
    """vLLM's fields on how an answer ends."""

    ignore_eos: bool = False
    min_tokens: int = 0
    extra_ids: tuple[int, ...] = ()

    def stop_ids(self, default: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that end the answer."""
        return tuple(dict.fromkeys((*(() if self.ignore_eos else default), *self.extra_ids)))

    def constraint(
        self, stop_ids: tuple[int, ...], max_tokens: int, other: ConstraintSpec | None
    ) -> ConstraintSpec | None:
        """`other` is the constraint of the answer's text, which does not limit its length."""
        name = "ignore_eos" if self.ignore_eos else "min_tokens"
        if other is not None and (self.ignore_eos or self.min_tokens):
            raise InvalidRequest(f"{name}: cannot be combined with a fixed form of the answer", param=name)
        if self.min_tokens > max_tokens:
            raise InvalidRequest(f"min_tokens: at most max_tokens, {max_tokens}", param="min_tokens")
        if self.min_tokens and stop_ids:
            return ConstraintSpec(min_tokens=self.min_tokens, end_ids=stop_ids)
        return other


def read_decoder(body: DecoderBody | None, *, is_realtime: bool, info: EngineInfo) -> DecoderParams:
    given = {} if body is None else body.model_dump(exclude_none=True)
    if "name" in given:
        given["name"] = DecoderName(given["name"])
    if "rule" in given:
        given["rule"] = CommitRule(given["rule"])
    default = info.default_decoder
    defaults = default.for_decoder(given.get("name", default.name), info.other_decoders)
    # The network of a random canvas was trained with one length.
    is_short = is_realtime and defaults.name is not DecoderName.CANVAS
    longest = min(REALTIME_CANVAS_LEN, info.max_canvas_len) if is_short else info.max_canvas_len
    defaults = replace(defaults, canvas_len=min(defaults.canvas_len, longest))
    if defaults.name not in info.decoders:
        known = ", ".join(info.decoders)
        raise InvalidRequest(f"decoder.name: {info.family} supports {known}", param="decoder.name")
    if given.get("canvas_len", 1) > info.max_canvas_len:
        raise InvalidRequest(f"decoder.canvas_len: at most {info.max_canvas_len} here", param="decoder.canvas_len")
    return replace(defaults, **given)


class ReplyChunks:
    """Makes the chunks of one stream in OpenAI's form; all have the same id, time, model and fingerprint."""

    def __init__(self, kind: str, plan: ReplyPlan, fingerprint: str, *, has_usage: bool) -> None:
        """`kind` is the value of `object`."""
        self._head: dict[str, Any] = {
            "id": plan.id,
            "object": kind,
            "created": plan.created,
            "model": plan.model,
            "system_fingerprint": fingerprint,
        }
        self._tail: dict[str, Any] = {"usage": None} if has_usage else {}
        self._num_answers = plan.num_answers
        # Fields of the first chunk alone.
        self._first: dict[str, Any] = {"warning": plan.warning} if plan.warning else {}

    def with_choice(self, index: int, text: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": index, **text, "finish_reason": finish, "logprobs": None}
        first, self._first = self._first, {}
        return {**self._head, "choices": [choice], **self._tail, **first}

    def with_usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        usage = usage_reply(finished, self._num_answers)
        return {**self._head, "choices": [], "usage": usage, **metrics_field(finished)}
