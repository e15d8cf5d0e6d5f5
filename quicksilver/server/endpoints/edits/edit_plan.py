"""Next-edit and apply bodies -> Plans, and their answers -> the replies that editors parse.

An edit that was cut off is not offered: the region comes back unchanged, with `length` as the reason, since editors
put whatever they get into the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.prompts import (
    EDIT_PREFILL,
    EDIT_STOP,
    EditRequest,
    can_edit,
    edit_messages,
    edit_reply,
    parse_edit,
)
from quicksilver.server.endpoints.chat.prompt import join_parts
from quicksilver.server.endpoints.completions.plan import code_room, code_stops
from quicksilver.server.endpoints.edits.wire import EDIT_TOKENS, EditBody
from quicksilver.server.generation.answer import Ask
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.plan import Plan, find_room, make_plan
from quicksilver.server.generation.sampling import overlay, pick_decoder, pick_seed
from quicksilver.server.services import Services
from quicksilver.text.conversation import PromptRequest


@dataclass(frozen=True, slots=True)
class EditPlan:
    plan: Plan
    request: EditRequest


async def plan_edit(body: EditBody, services: Services, tenant: str) -> EditPlan:
    services.directory.check(body.model)
    text = join_parts(body.messages[0].content)
    services.prompts.check_length(len(text), "messages")
    request = parse_edit(text)
    room = code_room(body.max_tokens or EDIT_TOKENS, services)
    ask = await _edit_ask(request, room, services, tenant)
    ask = replace(ask, request=replace(ask.request, tenant=tenant, params=edit_params(body, room, services)))
    return EditPlan(make_plan("chatcmpl", body.model, [ask]), request)


async def _edit_ask(request: EditRequest, room: int, services: Services, tenant: str) -> Ask:
    """Weights that learned the edit tokens are asked in them; others get an instruction, and a begun answer."""
    if can_edit(services.tokenizer):
        ids = await services.prompts.encode_edit(request, services.engine.info.context_len - room, tenant)
        return Ask(Request("", ids), is_plain=True)
    ids = await _instruction(request, room, services, tenant)
    find_room(len(ids), room, services, "messages")
    return Ask(Request("", ids), stop=(EDIT_STOP,), is_plain=True)


async def _instruction(request: EditRequest, room: int, services: Services, tenant: str) -> tuple[int, ...]:
    """Without its solved examples where the context has no room for them."""
    turns = edit_messages(request)
    prefill = services.tokenizer.encode(EDIT_PREFILL)
    whole = await services.prompts.render(PromptRequest(tuple(turns)), tenant)
    if len(whole.ids) + len(prefill) + room <= services.engine.info.context_len:
        return (*whole.ids, *prefill)
    short = await services.prompts.render(PromptRequest(tuple(turns[-1:])), tenant)
    return (*short.ids, *prefill)


def edit_params(body: EditBody, room: int, services: Services) -> DecodeParams:
    roles = services.tokenizer.roles
    stops = code_stops(roles, services.tokenizer.eos_ids)
    defaults = DecodeParams(
        stop_ids=(*stops, *(i for i in (roles.edit_open, roles.edit_close) if i is not None)),
    )
    return overlay(
        defaults,
        {
            "max_new_tokens": room,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "presence_penalty": body.presence_penalty,
            "seed": pick_seed(body.seed),
            "decoder": pick_decoder(body.decoder, is_realtime=False, info=services.engine.info),
        },
    )


def finish_edit(answer: Whole, request: EditRequest) -> Whole:
    """The answer as editors want it: the region in a bare fence."""
    is_cut = answer.ended.finish is FinishReason.LENGTH
    return replace(answer, content=edit_reply(request, request.region if is_cut else answer.content))
