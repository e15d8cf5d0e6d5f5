"""Completion bodies -> a ReplyPlan: fill-in-the-middle, and plain continuation of text or token ids."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from quicksilver.core import ConstraintSpec, DecodeParams, Request
from quicksilver.editing.prompts import fim_bias, fim_lead, fim_space
from quicksilver.editing.templates import EditTemplate, read_edit, read_fim
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.completions.wire import FIM_STOP, FIM_TOKENS, CompletionBody, FimBody
from quicksilver.server.generation.plan import (
    AnswerRequest,
    EndRules,
    ReplyPlan,
    TokenLimit,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_logit_bias,
    read_prediction,
    read_seed,
    read_stop,
    read_stop_ids,
    read_top_k,
    with_given,
)
from quicksilver.server.generation.prompt_scores import ScoredPromptRequest
from quicksilver.server.services import Services
from quicksilver.text.answer import ReadOptions
from quicksilver.text.special_tokens import Specials

# Token limit of a plain continuation without `max_tokens`: it has no natural end.
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
    if not isinstance(body.prompt, str):
        raise InvalidRequest("prompt: with a suffix it is one string", param="prompt")
    if isinstance(body, CompletionBody) and body.lead:
        raise InvalidRequest("lead: cannot be combined with suffix", param="lead")
    tokenizer, ends = services.tokenizer, read_ends(body, services)
    limit = code_limit(FIM_TOKENS if body.max_tokens is None else body.max_tokens, services)
    find_lead = fim_space if _returns_tokens(body) or ends != EndRules() else fim_lead
    lead = find_lead(tokenizer, body.prompt)
    prefix, suffix = body.prompt.removesuffix(lead), body.suffix or ""
    max_prompt = services.engine.info.context_len - limit.max_new_tokens
    ids = await services.prompts.encode_fim(prefix, suffix, max_prompt, tenant)
    stop = FIM_STOP if body.stop is None else read_stop(body.stop)
    prompt = TextPrompt(never_empty(ids, services), stop, lead, lead if lead.strip() else "")
    stop_ids = ends.stop_ids(code_stop_ids(tokenizer.roles, tokenizer.eos_ids))
    params = read_params(body, limit, DecodeParams(stop_ids=stop_ids, logit_bias=fim_bias(tokenizer)), services)
    answer = make_answer(prompt, params, tenant, ends)
    return plan_reply("cmpl", body.model, await _with_options([answer], body, services), num_candidates(body))


def read_template(body: CompletionBody) -> tuple[CompletionBody, EditTemplate | None]:
    """A prompt in the template of a code model: a fill-in-the-middle one becomes prefix and suffix, a next edit is
    returned. The texts between the marks stay plain text."""
    is_plain = body.suffix is None and isinstance(body.prompt, str) and not _returns_tokens(body)
    if body.template == "off" or not is_plain or not isinstance(body.prompt, str):
        return body, None
    fim = read_fim(body.prompt)
    if fim is not None:
        return body.model_copy(update={"prompt": fim.before, "suffix": fim.suffix}), None
    return body, read_edit(body.prompt)


async def plan_completion(body: CompletionBody, services: Services, tenant: str) -> ReplyPlan:
    encoded, ends = await _encode_prompts(body, services, tenant), read_ends(body, services)
    requested = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    limits = [limit_tokens(len(ids), requested, services, "prompt") for ids in encoded]
    check_lead(body.lead or "", services)
    stop_ids = ends.stop_ids(services.tokenizer.eos_ids)
    defaults = DecodeParams(temperature=services.config.temperature, stop_ids=stop_ids)
    prompts = [TextPrompt(ids, read_stop(body.stop), forced=body.lead or "") for ids in encoded]
    answers = [
        make_answer(prompt, read_params(body, limit, defaults, services), tenant, ends)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    wrapped = await _with_options(answers, body, services)
    # One warning: the limits of several prompts differ, and the reply has one field for all of them.
    warning = next((limit.warning for limit in limits if limit.warning), None)
    return plan_reply("cmpl", body.model, wrapped, num_candidates(body), warning)


async def _with_options(
    answers: Sequence[AnswerRequest], body: FimBody | CompletionBody, services: Services
) -> list[AnswerRequest]:
    """The answers with their prediction, and with scores of their prompts."""
    if isinstance(body, FimBody):
        return list(answers)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs: not in a stream", param="prompt_logprobs")
    ids = await read_prediction(body.prediction, services, answers[0].request.tenant)
    predicted = [replace(one, request=replace(one.request, prediction=ids)) for one in answers]
    num_top = [body.logprobs if body.echo else None, body.prompt_logprobs]
    if num_top == [None, None]:
        return predicted
    most = max(count or 0 for count in num_top)
    return [ScoredPromptRequest(one.request, one.options, most) for one in predicted]


def read_ends(body: FimBody | CompletionBody, services: Services) -> EndRules:
    if isinstance(body, FimBody):
        return EndRules()
    extra = read_stop_ids(body.stop_token_ids, services.engine.info, "stop_token_ids")
    return EndRules(bool(body.ignore_eos), body.min_tokens or 0, extra or ())


def make_answer(prompt: TextPrompt, params: DecodeParams, tenant: str, ends: EndRules | None = None) -> AnswerRequest:
    lead = ConstraintSpec(lead=prompt.forced) if prompt.forced else None
    constraint = (ends or EndRules()).constraint(params.stop_ids, params.max_new_tokens, lead)
    request = Request("", prompt.ids, params, tenant, constraint)
    return AnswerRequest(request, ReadOptions(stop=prompt.stop, is_plain=True, lead=prompt.lead))


def check_lead(lead: str, services: Services) -> None:
    if services.tokenizer.decode(services.tokenizer.encode(lead)) != lead:
        raise InvalidRequest("lead: the model has no tokens for this text", param="lead")


def code_limit(requested: int, services: Services) -> TokenLimit:
    """Code prompts are cut to fit, so the answer gets the tokens it requests, within the context."""
    return TokenLimit(max(min(requested, 1), min(requested, services.engine.info.context_len - MIN_CODE_PROMPT)))


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
            "logprobs": _num_logprobs(body) if isinstance(body, CompletionBody) else None,
            "logit_bias": read_logit_bias(body.logit_bias, info) if isinstance(body, CompletionBody) else None,
            "stop_ids": read_stop_ids(body.stop_ids, info) if isinstance(body, CompletionBody) else None,
        },
    )


def _returns_tokens(body: FimBody | CompletionBody) -> bool:
    """Whether the prompt or its tokens are returned: then they are those of the text as it was sent."""
    return isinstance(body, CompletionBody) and bool(body.echo or body.return_token_ids or body.logprobs is not None)


def _num_logprobs(body: CompletionBody) -> int | None:
    """Candidates are ranked by their log-probabilities."""
    return body.logprobs if body.logprobs is not None or num_candidates(body) == (body.n or 1) else 0


def num_candidates(body: FimBody | CompletionBody) -> int:
    """Answers to generate for each prompt."""
    if isinstance(body, FimBody):
        return 1
    num_answers, best_of = body.n or 1, body.best_of or body.n or 1
    if best_of < num_answers:
        raise InvalidRequest("best_of: at least n", param="best_of")
    if body.stream and best_of > num_answers:
        raise InvalidRequest("best_of: cannot be streamed, since complete answers are compared", param="best_of")
    return best_of


async def _encode_prompts(body: CompletionBody, services: Services, tenant: str) -> list[tuple[int, ...]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        texts = [prompt]
    elif not prompt or not isinstance(prompt[0], str):
        special = set() if body.allow_special_ids else set(services.tokenizer.special_tokens.values())
        lists = prompt if prompt and isinstance(prompt[0], list) else [prompt]
        places = [f"prompt.{i}" if lists is prompt else "prompt" for i in range(len(lists))]
        return [_check_ids(ids, special, services, place) for ids, place in zip(lists, places, strict=True)]
    else:
        texts = list(map(str, prompt))
    return [never_empty(ids, services) for ids in await services.prompts.encode(texts, tenant, "prompt")]


def never_empty(ids: Sequence[int], services: Services) -> tuple[int, ...]:
    """An empty text still needs a token to continue: the end token also separates texts."""
    return tuple(ids) or services.tokenizer.eos_ids[-1:]


def _check_ids(prompt: object, refused: Set[int], services: Services, place: str) -> tuple[int, ...]:
    """`refused` holds the special ids, which the caller must allow explicitly. The end token may come first: it
    separates texts, and harnesses put it before a text whose first token they score."""
    assert isinstance(prompt, list)
    width = min(services.engine.info.vocab_size, services.tokenizer.vocab_size)
    for i, token_id in enumerate(prompt):
        is_separator = i == 0 and token_id in services.tokenizer.eos_ids
        if token_id >= width or (token_id in refused and not is_separator):
            raise InvalidRequest(f"{place}.{i}: no plain token has this id", param=f"{place}.{i}")
    return never_empty(prompt, services)
