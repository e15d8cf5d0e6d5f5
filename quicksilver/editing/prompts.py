"""Prompts for fill-in-the-middle and for the next edit, and the reply format that editors parse.

Text of files is encoded with `Tokenizer.encode`, so tags in it stay text. A prompt that is too long loses the text
farthest from the cursor first.
"""

from __future__ import annotations

import re

from quicksilver.editing.edit_instruction import EDIT_PREFILL, EDIT_STOP, edit_fence, edit_messages
from quicksilver.editing.edit_request import CURSOR, REGION, EditRequest, Snippet, parse_edit
from quicksilver.text.special_tokens import find_roles
from quicksilver.text.tokenizer import Tokenizer

__all__ = [
    "EDIT_PREFILL",
    "EDIT_STOP",
    "NO_SUFFIX",
    "EditRequest",
    "Snippet",
    "can_edit",
    "edit_fence",
    "edit_messages",
    "edit_prompt",
    "edit_reply",
    "fim_bias",
    "fim_lead",
    "fim_prompt",
    "fim_space",
    "parse_edit",
    "rewritten_region",
]

# Some clients send this instead of an empty suffix.
NO_SUFFIX = "<|endoftext|>"

_END_BIAS = 3.0
# Text that byte-pair vocabularies never merge with the text before it: letters or signs, with one leading space.
_LAST_WORD = re.compile(r" ?(?:[^\W\d_]+|(?:[^\w\s]|_)+)\Z")
_LONGEST_LEAD = 40
_FIM_HEAD = re.compile(r"(?:<\|file_sep\|>(?P<path>[^\n]*)\n)?<\|fim_prefix\|>")
_FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)(?:\n?```\s*)?", re.DOTALL)


def fim_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, max_tokens: int | None = None) -> list[int]:
    """The prompt of fill-in-the-middle; `prefix` is without its `fim_lead`. The order depends on the weights.

    Weights pretrained on such tokens get prefix, suffix and a middle token. Weights with a skill adapter get the suffix
    first, so that the middle continues the prefix. Others continue the prefix alone.
    """
    roles = tokenizer.roles
    head: list[int] = []
    if match := _FIM_HEAD.match(prefix):
        prefix = prefix[match.end() :]
        head = _file_head(tokenizer, match["path"] or "")
    before, after = tokenizer.encode(prefix), tokenizer.encode("" if suffix == NO_SUFFIX else suffix)
    if roles.fim_prefix is None or roles.fim_suffix is None or roles.fim_middle is None:
        return _tail(before, len(before) if max_tokens is None else max_tokens)
    if max_tokens is not None:
        before, after = _fit(before, after, max_tokens - len(head) - (2 if _learned_gaps(tokenizer) else 3))
    if _learned_gaps(tokenizer):
        return [*head, roles.fim_suffix, *after, roles.fim_prefix, *before]
    return [*head, roles.fim_prefix, *before, roles.fim_suffix, *after, roles.fim_middle]


def fim_lead(tokenizer: Tokenizer, prefix: str) -> str:
    """The lead: the end of a prefix that the answer must repeat. It is the last word or run of signs, with its space.

    A cursor is often inside a word, where no token ends: after the token "comp" the model rarely continues with "ute".
    Only for weights with a skill adapter, whose middle continues the prefix.
    """
    if not _learned_gaps(tokenizer):
        return ""
    head = _FIM_HEAD.match(prefix)
    start = max(head.end() if head else 0, len(prefix) - _LONGEST_LEAD - 1)
    match = _LAST_WORD.search(prefix, start)
    if match is None or len(match[0]) > _LONGEST_LEAD or not _can_spell(tokenizer, match[0]):
        return fim_space(tokenizer, prefix)
    return match[0]


def fim_space(tokenizer: Tokenizer, prefix: str) -> str:
    """The shortest lead: a trailing space, because one token holds a word and the space before it. The model repeats
    it without a constraint. Only for weights with a skill adapter.
    """
    return " " if _learned_gaps(tokenizer) and prefix.endswith(" ") else ""


def _can_spell(tokenizer: Tokenizer, text: str) -> bool:
    return tokenizer.decode(tokenizer.encode(text)) == text


def fim_bias(tokenizer: Tokenizer) -> dict[int, float]:
    """The logit bias of the end token. Weights with a skill adapter give the end of the middle too little
    probability (dev/log.md has the curve); others get no bias.
    """
    end = tokenizer.roles.turn_close
    return {} if end is None or not _learned_gaps(tokenizer) else {end: _END_BIAS}


def _learned_gaps(tokenizer: Tokenizer) -> bool:
    """Whether a skill adapter taught fill-in-the-middle with reserved tokens: the checkpoint has no tokens for it."""
    return can_edit(tokenizer) and find_roles(tokenizer.special_tokens, ()).fim_middle is None


def can_edit(tokenizer: Tokenizer) -> bool:
    """Whether the weights were trained on the edit tokens, so that `edit_prompt` applies."""
    roles = tokenizer.roles
    return None not in (roles.edit_open, roles.edit_close, roles.fim_middle)


def edit_prompt(tokenizer: Tokenizer, request: EditRequest, max_tokens: int | None = None) -> list[int]:
    """Context, then the file with its region marked; the answer is the rewritten region. Needs `can_edit`."""
    roles = tokenizer.roles
    if roles.edit_open is None or roles.edit_close is None or roles.fim_middle is None:
        raise ValueError("the tokenizer has no edit tokens; use edit_messages")
    region = [roles.edit_open, *_region_ids(tokenizer, request), roles.edit_close]
    file = _file_head(tokenizer, request.path)
    before, after = tokenizer.encode(request.before), tokenizer.encode(request.after)
    context = _context_ids(tokenizer, request)
    if max_tokens is not None:
        room = max_tokens - len(region) - len(file) - 1
        before, after = _fit(before, after, room)
        context = _tail(context, room - len(before) - len(after))
    return [*context, *file, *before, *region, *after, roles.fim_middle]


def edit_reply(request: EditRequest, answer: str) -> str:
    """The region in a bare fence; an empty answer repeats the original region."""
    return f"```\n{rewritten_region(request, answer)}\n```"


def rewritten_region(request: EditRequest, answer: str) -> str:
    region = _clean(request, answer)
    return request.region if not region.strip() or region.strip() == "None" else region


def _clean(request: EditRequest, answer: str) -> str:
    if (fenced := _FENCED.fullmatch(answer)) and "```" not in request.region:
        answer = fenced[1]
    answer = answer.removeprefix(f"<|{REGION}|>\n").removesuffix(f"\n<|/{REGION}|>")
    if CURSOR not in request.region:
        answer = answer.replace(CURSOR, "")
    trailing = len(request.region) - len(request.region.rstrip("\n"))
    answer = answer.rstrip("\n") + "\n" * trailing
    if "\r\n" in request.region:
        answer = re.sub(r"(?<!\r)\n", "\r\n", answer)
    return answer


def _region_ids(tokenizer: Tokenizer, request: EditRequest) -> list[int]:
    cursor = tokenizer.roles.cursor
    if cursor is None or request.cursor is None:
        return tokenizer.encode(request.region)
    left, right = request.region[: request.cursor], request.region[request.cursor :]
    return [*tokenizer.encode(left), cursor, *tokenizer.encode(right)]


def _context_ids(tokenizer: Tokenizer, request: EditRequest) -> list[int]:
    """Snippets, then edits from oldest to newest: the most relevant text is last and is cut last."""
    ids: list[int] = []
    for snippet in request.snippets:
        ids += [*_file_head(tokenizer, snippet.path), *tokenizer.encode(snippet.code + "\n")]
    for diff in request.history:
        ids += [*_file_head(tokenizer, "edit"), *tokenizer.encode(diff + "\n")]
    return ids


def _file_head(tokenizer: Tokenizer, path: str) -> list[int]:
    separator = tokenizer.roles.file_sep
    return [*([] if separator is None else [separator]), *tokenizer.encode(path + "\n")] if path else []


def _fit(before: list[int], after: list[int], room: int) -> tuple[list[int], list[int]]:
    """Prefix and suffix within `room` tokens: a quarter for the suffix, more if the prefix is short."""
    room = max(room, 0)
    num_after = min(len(after), max(room // 4, room - len(before)))
    return _tail(before, room - num_after), after[:num_after]


def _tail(ids: list[int], count: int) -> list[int]:
    return ids[max(len(ids) - max(count, 0), 0) :]
