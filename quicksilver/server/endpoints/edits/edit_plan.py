"""Next-edit and apply bodies -> Plans, and their answers -> the replies that editors parse.

An edit that was cut off is not offered: the region comes back unchanged, with `length` as the reason, since editors
put whatever they get into the file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.prompts import (
    EDIT_PREFILL,
    EDIT_STOP,
    EditRequest,
    can_edit,
    edit_messages,
    edit_prompt,
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


@dataclass(frozen=True, slots=True)
class EditPlan:
    plan: Plan
    request: EditRequest


async def plan_edit(body: EditBody, services: Services, tenant: str) -> EditPlan:
    services.directory.check(body.model)
    request = parse_edit(join_parts(body.messages[0].content))
    room = code_room(body.max_tokens or EDIT_TOKENS, services)
    ask = await asyncio.to_thread(_edit_ask, request, room, services)
    ask = replace(ask, request=replace(ask.request, tenant=tenant, params=edit_params(body, room, services)))
    return EditPlan(make_plan("chatcmpl", body.model, [ask]), request)


def _edit_ask(request: EditRequest, room: int, services: Services) -> Ask:
    """Weights that learned the edit tokens are asked in them; others get an instruction, and a begun answer."""
    if can_edit(services.tokenizer):
        ids = edit_prompt(services.tokenizer, request, services.engine.info.context_len - room)
        return Ask(Request("", tuple(ids)), is_plain=True)
    ids = _instruction(request, room, services)
    find_room(len(ids), room, services, "messages")
    return Ask(Request("", tuple(ids)), stop=(EDIT_STOP,), is_plain=True)


def _instruction(request: EditRequest, room: int, services: Services) -> list[int]:
    """Without its solved examples where the context has no room for them."""
    turns = edit_messages(request)
    ids = [*services.template.render(turns).ids, *services.tokenizer.encode(EDIT_PREFILL)]
    if len(ids) + room <= services.engine.info.context_len:
        return ids
    return [*services.template.render(turns[-1:]).ids, *services.tokenizer.encode(EDIT_PREFILL)]


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
