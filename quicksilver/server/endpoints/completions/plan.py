"""Completion bodies -> a ReplyPlan: fill-in-the-middle, and plain continuation of text or token ids."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from quicksilver.core import ConstraintSpec, DecodeParams, Request
from quicksilver.editing.prompts import fim_bias, fim_lead, fim_space
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.completions.wire import FIM_STOP, FIM_TOKENS, CompletionBody, FimBody
from quicksilver.server.generation.plan import (
    AnswerRequest,
    ReplyPlan,
    TokenLimit,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_logit_bias,
    read_seed,
    read_stop,
    read_stop_ids,
    read_top_k,
    with_given,
)
from quicksilver.server.services import Services
from quicksilver.text.answer import ReadOptions
from quicksilver.text.special_tokens import Specials

# Of a plain continuation without `max_tokens`: it has no natural end.
COMPLETION_TOKENS = 256
# Tokens that a code prompt always gets, however long an answer is requested.
MIN_CODE_PROMPT = 64


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Token ids to continue, and how the continuation begins and ends."""

    ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    # The end of the prompt's text that the model repeats and that is not part of the answer.
    lead: str = ""
    # What the answer must begin with.
    forced: str = ""


async def plan_fim(body: FimBody | CompletionBody, services: Services, tenant: str) -> ReplyPlan:
    services.directory.check(body.model)
    if not isinstance(body.prompt, str):
        raise InvalidRequest("prompt: with a suffix it is one string", param="prompt")
    if isinstance(body, CompletionBody) and body.lead:
        raise InvalidRequest("lead: cannot be combined with suffix", param="lead")
    tokenizer, limit = services.tokenizer, code_limit(body.max_tokens or FIM_TOKENS, services)
    find_lead = fim_space if _returns_tokens(body) else fim_lead
    lead = find_lead(tokenizer, body.prompt)
    prefix, suffix = body.prompt.removesuffix(lead), body.suffix or ""
    max_prompt = services.engine.info.context_len - limit.max_new_tokens
    ids = await services.prompts.encode_fim(prefix, suffix, max_prompt, tenant)
    stop = FIM_STOP if body.stop is None else read_stop(body.stop)
    prompt = TextPrompt(never_empty(ids, services), stop, lead, lead if lead.strip() else "")
    stop_ids = code_stop_ids(tokenizer.roles, tokenizer.eos_ids)
    params = read_params(body, limit, DecodeParams(stop_ids=stop_ids, logit_bias=fim_bias(tokenizer)), services)
    return plan_reply("cmpl", body.model, [make_answer(prompt, params, tenant)], _num_answers(body))


async def plan_completion(body: CompletionBody, services: Services, tenant: str) -> ReplyPlan:
    services.directory.check(body.model)
    if body.echo and body.logprobs is not None:
        raise InvalidRequest("echo: cannot be combined with logprobs", param="echo")
    encoded = await _encode_prompts(body, services, tenant)
    limits = [limit_tokens(len(ids), body.max_tokens or COMPLETION_TOKENS, services, "prompt") for ids in encoded]
    check_lead(body.lead or "", services)
    defaults = DecodeParams(temperature=services.config.temperature, stop_ids=services.tokenizer.eos_ids)
    prompts = [TextPrompt(ids, read_stop(body.stop), forced=body.lead or "") for ids in encoded]
    answers = [
        make_answer(prompt, read_params(body, limit, defaults, services), tenant)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    return plan_reply("cmpl", body.model, answers, _num_answers(body), limits[0].warning)


def make_answer(prompt: TextPrompt, params: DecodeParams, tenant: str) -> AnswerRequest:
    constraint = ConstraintSpec(lead=prompt.forced) if prompt.forced else None
    request = Request("", prompt.ids, params, tenant, constraint)
    return AnswerRequest(request, ReadOptions(stop=prompt.stop, is_plain=True, lead=prompt.lead))


def check_lead(lead: str, services: Services) -> None:
    if services.tokenizer.decode(services.tokenizer.encode(lead)) != lead:
        raise InvalidRequest("lead: the model has no tokens for this text", param="lead")


def code_limit(requested: int, services: Services) -> TokenLimit:
    """Code prompts are cut to fit, so the answer gets the tokens it requests, within the context."""
    return TokenLimit(max(1, min(requested, services.engine.info.context_len - MIN_CODE_PROMPT)))


def code_stop_ids(roles: Specials, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """A model that begins another file, turn or gap has finished this one."""
    others = (roles.fim_prefix, roles.fim_suffix, roles.fim_middle, roles.file_sep, roles.repo_name, roles.turn_open)
    return tuple(dict.fromkeys((*eos_ids, *(i for i in others if i is not None))))


def read_params(
    body: FimBody | CompletionBody, limit: TokenLimit, defaults: DecodeParams, services: Services
) -> DecodeParams:
    info = services.engine.info
    return with_given(
        defaults,
        {
            "max_new_tokens": limit.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": read_top_k(body.top_k),
            "min_p": body.min_p,
            "seed": read_seed(body.seed),
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "repetition_penalty": body.repetition_penalty,
            "decoder": read_decoder(body.decoder, is_realtime=bool(body.realtime), info=info),
            "logprobs": body.logprobs if isinstance(body, CompletionBody) else None,
            "logit_bias": read_logit_bias(body.logit_bias, info) if isinstance(body, CompletionBody) else None,
            "stop_ids": read_stop_ids(body.stop_ids, info) if isinstance(body, CompletionBody) else None,
        },
    )


def _returns_tokens(body: FimBody | CompletionBody) -> bool:
    """Whether the prompt or its tokens are returned: then they are those of the text as it was sent."""
    return isinstance(body, CompletionBody) and bool(body.echo or body.return_token_ids or body.logprobs is not None)


def _num_answers(body: FimBody | CompletionBody) -> int:
    return (body.n or 1) if isinstance(body, CompletionBody) else 1


async def _encode_prompts(body: CompletionBody, services: Services, tenant: str) -> list[tuple[int, ...]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        texts = [prompt]
    elif not prompt or isinstance(prompt[0], int):
        special = set() if body.allow_special_ids else set(services.tokenizer.special_tokens.values())
        return [_check_ids(prompt, special, services)]
    else:
        texts = list(map(str, prompt))
    return [never_empty(ids, services) for ids in await services.prompts.encode(texts, tenant, "prompt")]


def never_empty(ids: Sequence[int], services: Services) -> tuple[int, ...]:
    """An empty text still needs a token to continue: the end token also separates texts."""
    return tuple(ids) or services.tokenizer.eos_ids[-1:]


def _check_ids(prompt: object, refused: Set[int], services: Services) -> tuple[int, ...]:
    """`refused` holds the special ids, which the caller must allow explicitly."""
    assert isinstance(prompt, list)
    width = min(services.engine.info.vocab_size, services.tokenizer.vocab_size)
    for i, token_id in enumerate(prompt):
        if token_id >= width or token_id in refused:
            raise InvalidRequest(f"prompt.{i}: no plain token has this id", param=f"prompt.{i}")
    return never_empty(prompt, services)
