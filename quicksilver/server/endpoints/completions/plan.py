"""Completion bodies -> a Plan: fill-in-the-middle, and plain continuation of text or token ids."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from quicksilver.core import ConstraintSpec, DecodeParams, Request
from quicksilver.editing.prompts import fim_bias, fim_lead, fim_space
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.completions.wire import (
    FIM_STOP,
    FIM_TOKENS,
    CompletionBody,
    FimBody,
)
from quicksilver.server.generation.answer import Ask
from quicksilver.server.generation.plan import Plan, Room, find_room, make_plan, read_stop
from quicksilver.server.generation.sampling import (
    overlay,
    pick_bias,
    pick_decoder,
    pick_seed,
    pick_stop_ids,
    pick_top_k,
)
from quicksilver.server.services import Services
from quicksilver.text.special_tokens import Specials

COMPLETION_TOKENS = 256
"""Of a plain continuation that names no limit: it has no natural end."""
MIN_CODE_PROMPT = 64
"""Tokens a code prompt always gets, however long an answer is asked for."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to continue, and the strings at which the continuation ends."""

    ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    lead: str = ""


async def plan_fim(body: FimBody | CompletionBody, services: Services, tenant: str) -> Plan:
    services.directory.check(body.model)
    if not isinstance(body.prompt, str):
        raise InvalidRequest("prompt: with a suffix it is one string", param="prompt")
    if isinstance(body, CompletionBody) and body.lead:
        raise InvalidRequest("lead: cannot be combined with suffix", param="lead")
    room = code_room(body.max_tokens or FIM_TOKENS, services)
    find_lead = fim_space if _asks_for_tokens(body) else fim_lead
    lead = find_lead(services.tokenizer, body.prompt)
    prefix, suffix = body.prompt.removesuffix(lead), body.suffix or ""
    ids = await services.prompts.encode_fim(prefix, suffix, services.engine.info.context_len - room, tenant)
    stops = code_stops(services.tokenizer.roles, services.tokenizer.eos_ids)
    defaults = DecodeParams(stop_ids=stops, logit_bias=fim_bias(services.tokenizer))
    stop = FIM_STOP if body.stop is None else read_stop(body.stop)
    ask = text_ask(body, Prompt(never_empty(ids, services), stop, lead), Room(room), defaults, services)
    ask = _must_begin(ask, lead) if lead.strip() else ask
    return make_plan("cmpl", body.model, [for_tenant(ask, tenant)], _num_answers(body))


async def plan_completion(body: CompletionBody, services: Services, tenant: str) -> Plan:
    services.directory.check(body.model)
    if body.echo and body.logprobs is not None:
        raise InvalidRequest("echo: cannot be combined with logprobs", param="echo")
    prompts = await _encode_prompts(body, services, tenant)
    defaults = DecodeParams(temperature=services.config.temperature, stop_ids=services.tokenizer.eos_ids)
    rooms = [find_room(len(ids), body.max_tokens or COMPLETION_TOKENS, services, "prompt") for ids in prompts]
    stop = read_stop(body.stop)
    check_lead(body.lead or "", services)
    asks = [
        for_tenant(text_ask(body, Prompt(ids, stop), room, defaults, services), tenant)
        for ids, room in zip(prompts, rooms, strict=True)
    ]
    asks = [_must_begin(ask, body.lead) for ask in asks] if body.lead else asks
    return make_plan("cmpl", body.model, asks, _num_answers(body), rooms[0].warning)


def check_lead(lead: str, services: Services) -> None:
    if services.tokenizer.decode(services.tokenizer.encode(lead)) != lead:
        raise InvalidRequest("lead: the model has no tokens for this text", param="lead")


def code_room(asked: int, services: Services) -> int:
    """Code prompts are cut to fit, so the answer's share is what is asked for, within the context."""
    return max(1, min(asked, services.engine.info.context_len - MIN_CODE_PROMPT))


def code_stops(roles: Specials, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """A model that begins another file, turn or gap has finished this one."""
    others = (roles.fim_prefix, roles.fim_suffix, roles.fim_middle, roles.file_sep, roles.repo_name, roles.turn_open)
    return tuple(dict.fromkeys((*eos_ids, *(i for i in others if i is not None))))


def text_ask(
    body: FimBody | CompletionBody, prompt: Prompt, room: Room, defaults: DecodeParams, services: Services
) -> Ask:
    info = services.engine.info
    params = overlay(
        defaults,
        {
            "max_new_tokens": room.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": pick_top_k(body.top_k),
            "min_p": body.min_p,
            "seed": pick_seed(body.seed),
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "repetition_penalty": body.repetition_penalty,
            "decoder": pick_decoder(body.decoder, is_realtime=bool(body.realtime), info=info),
            "logprobs": body.logprobs if isinstance(body, CompletionBody) else None,
            "logit_bias": pick_bias(body.logit_bias, info) if isinstance(body, CompletionBody) else None,
            "stop_ids": pick_stop_ids(body.stop_ids, info) if isinstance(body, CompletionBody) else None,
        },
    )
    return Ask(Request("", prompt.ids, params), stop=prompt.stop, is_plain=True, lead=prompt.lead)


def for_tenant(ask: Ask, tenant: str) -> Ask:
    return replace(ask, request=replace(ask.request, tenant=tenant))


def _must_begin(ask: Ask, lead: str) -> Ask:
    return replace(ask, request=replace(ask.request, constraint=ConstraintSpec(lead=lead)))


def _asks_for_tokens(body: FimBody | CompletionBody) -> bool:
    """Whether prompt or tokens come back: then they are those of the text as it was sent."""
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
    """An empty text still needs a token to continue: the one that ends texts also stands before them."""
    return tuple(ids) or services.tokenizer.eos_ids[-1:]


def _check_ids(prompt: object, refused: Set[int], services: Services) -> tuple[int, ...]:
    """Ids of our own vocabulary; `refused` are the special ones, unless the caller vouches for where they come from."""
    assert isinstance(prompt, list)
    width = min(services.engine.info.vocab_size, services.tokenizer.vocab_size)
    for i, token_id in enumerate(prompt):
        if token_id >= width or token_id in refused:
            raise InvalidRequest(f"prompt.{i}: no plain token has this id", param=f"prompt.{i}")
    return never_empty(prompt, services)
