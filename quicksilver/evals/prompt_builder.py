"""Builds the prompts of all tasks with the functions that the server uses.

Code prompts are truncated to fit the context. Chat prompts are not, so that an item that is too long fails visibly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quicksilver.editing.prompts import (
    EditRequest,
    can_edit,
    edit_fence,
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
    """Prompt ids, and what ends the answer."""

    ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # The end of the given text that the answer must start with.
    lead: str = ""


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    tokenizer: Tokenizer
    template: ChatTemplate
    context_len: int

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text))

    def text(self, text: str) -> tuple[int, ...]:
        """A plain-text prompt. An empty text becomes the end-of-text token: a prompt needs one token."""
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
        """An edit prompt in the edit tokens of the model if it has them, else as an instruction with a forced reply
        prefix."""
        if can_edit(self.tokenizer):
            ids = edit_prompt(self.tokenizer, request, self.context_len - room)
            return Prompt(tuple(ids), stop_ids=self._code_stops())
        prefill, stop = edit_fence(request)
        ids = [*self.template.render(edit_messages(request)).ids, *self.tokenizer.encode(prefill)]
        return Prompt(tuple(ids), stop=(stop,), stop_ids=self.tokenizer.eos_ids)

    def _code_stops(self) -> tuple[int, ...]:
        """Stop token ids: the start of another file, turn, gap or region ends the answer."""
        roles = self.tokenizer.roles
        others = (
            *(roles.fim_prefix, roles.fim_suffix, roles.fim_middle, roles.file_sep, roles.repo_name),
            *(roles.turn_open, roles.edit_open, roles.edit_close),
        )
        return tuple(dict.fromkeys((*self.tokenizer.eos_ids, *(i for i in others if i is not None))))
