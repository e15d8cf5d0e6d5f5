"""Writer: the prompts of every task, made by the functions that serving uses.

Holds a tokenizer, a template and the context length, and nothing of any task. Code prompts are cut to fit; chat
prompts are not, so that an item too long for a model fails openly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quicksilver.editing.prompts import (
    EDIT_PREFILL,
    EDIT_STOP,
    EditRequest,
    can_edit,
    edit_messages,
    edit_prompt,
    fim_bias,
    fim_lead,
    fim_prompt,
)
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import Message, Tool
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids, and what ends the answer to them."""

    ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    lead: str = ""
    """The end of what was given, left to the answer."""


@dataclass(frozen=True, slots=True)
class Writer:
    tokenizer: Tokenizer
    template: ChatTemplate
    context_len: int

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text))

    def text(self, text: str) -> tuple[int, ...]:
        """Plain text to be continued; an empty one still needs a token, and the one that ends texts stands there."""
        return self.encode(text) or self.tokenizer.eos_ids[-1:]

    def chat(self, messages: Sequence[Message] | str, tools: Sequence[Tool] = ()) -> Prompt:
        turns = [Message("user", messages)] if isinstance(messages, str) else messages
        return Prompt(self.template.render(turns, tools).ids, stop_ids=self.tokenizer.eos_ids)

    def fim(self, prefix: str, suffix: str, room: int) -> Prompt:
        lead = fim_lead(self.tokenizer, prefix)
        ids = fim_prompt(self.tokenizer, prefix.removesuffix(lead), suffix, self.context_len - room)
        ids = ids or list(self.tokenizer.eos_ids[-1:])
        return Prompt(tuple(ids), stop_ids=self._code_stops(), logit_bias=fim_bias(self.tokenizer), lead=lead)

    def edit(self, request: EditRequest, room: int) -> Prompt:
        """In the weights' own edit tokens where they learned them, else as an instruction with a begun answer."""
        if can_edit(self.tokenizer):
            ids = edit_prompt(self.tokenizer, request, self.context_len - room)
            return Prompt(tuple(ids), stop_ids=self._code_stops())
        ids = [*self.template.render(edit_messages(request)).ids, *self.tokenizer.encode(EDIT_PREFILL)]
        return Prompt(tuple(ids), stop=(EDIT_STOP,), stop_ids=self.tokenizer.eos_ids)

    def _code_stops(self) -> tuple[int, ...]:
        """Weights that begin another file, turn, gap or region have finished this one."""
        roles = self.tokenizer.roles
        others = (
            *(roles.fim_prefix, roles.fim_suffix, roles.fim_middle, roles.file_sep, roles.repo_name),
            *(roles.turn_open, roles.edit_open, roles.edit_close),
        )
        return tuple(dict.fromkeys((*self.tokenizer.eos_ids, *(i for i in others if i is not None))))
