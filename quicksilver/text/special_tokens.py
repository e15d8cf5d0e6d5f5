"""Roles of special tokens, and the spare tokens that are reserved for roles a tokenizer has no token for.

Tokens are found by name; ids come from the checkpoint. A reserved token works only with weights that were trained with
it. So reservations apply in training and with adapters trained that way, never to an unmodified checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids by role; None where the tokenizer has no token for it."""

    eos_ids: tuple[int, ...] = ()
    turn_open: int | None = None
    turn_close: int | None = None
    mask_id: int | None = None
    fim_prefix: int | None = None
    fim_suffix: int | None = None
    fim_middle: int | None = None
    repo_name: int | None = None
    file_sep: int | None = None
    tool_open: int | None = None
    tool_close: int | None = None
    think_open: int | None = None
    think_close: int | None = None
    # Opens the region that a next edit may rewrite.
    edit_open: int | None = None
    edit_close: int | None = None
    cursor: int | None = None

    def with_ids(self, ids: Mapping[str, int]) -> Specials:
        """A copy with these role ids replaced, as an adapter's metadata states them. Unknown roles raise ValueError."""
        known = {f.name for f in fields(self)} - {"eos_ids"}
        if unknown := sorted(set(ids) - known):
            raise ValueError(f"no such role: {', '.join(unknown)}")
        return replace(self, **dict[str, Any](ids))

    def named(self) -> Iterator[tuple[str, int]]:
        """The roles that have an id, except eos."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int):
                yield f.name, value


@dataclass(frozen=True, slots=True)
class Reserved:
    """A family of tokenizers, recognised by its spare tokens, and the role of each of them."""

    name: str
    roles: Mapping[str, str]


RESERVED: tuple[Reserved, ...] = (
    Reserved(
        name="smollm2",
        roles={
            "fim_prefix": "<jupyter_start>",
            "fim_suffix": "<jupyter_text>",
            "fim_middle": "<jupyter_code>",
            "edit_open": "<jupyter_output>",
            "edit_close": "<jupyter_script>",
            "cursor": "<issue_comment>",
            "tool_open": "<issue_start>",
            "tool_close": "<issue_closed>",
            "think_open": "<reponame>",
            "think_close": "<gh_stars>",
            "mask_id": "<empty_output>",
        },
    ),
    Reserved(
        name="qwen2",
        roles={
            "edit_open": "<|box_start|>",
            "edit_close": "<|box_end|>",
            "cursor": "<|quad_start|>",
            "think_open": "<|object_ref_start|>",
            "think_close": "<|object_ref_end|>",
            "mask_id": "<|vision_pad|>",
        },
    ),
)

# The tags as plain text, for tokenizers that have no token in that role.
TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

# Opens a channel of Gemma 4, whose name is the first line: `thought` is the only one.
CHANNEL_OPEN, CHANNEL_NAME = "<|channel>", "thought\n"

_USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "turn_open": ("<|im_start|>", "<|turn>"),
    "turn_close": ("<|im_end|>", "<turn|>"),
    "mask_id": ("<|mask|>", "<|MASK|>", "<|mdm_mask|>", "[MASK]", "<mask>"),
    "fim_prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>"),
    "fim_suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>"),
    "fim_middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>"),
    "repo_name": ("<|repo_name|>", "<repo_name>"),
    "file_sep": ("<|file_sep|>", "<file_sep>"),
    "tool_open": ("<tool_call>", "<|tool_call|>", "<|tool_call>"),
    "tool_close": ("</tool_call>", "<|/tool_call|>", "<tool_call|>"),
    # Gemma 4 also has <|think|>, which asks for thinking in the system turn and opens nothing.
    "think_open": ("<think>", CHANNEL_OPEN, "<|think|>"),
    "think_close": ("</think>", "<channel|>", "<|/think|>"),
}


def reserved_for(special_tokens: Mapping[str, int]) -> Reserved | None:
    """The reservation whose spare tokens this tokenizer has."""
    return next((entry for entry in RESERVED if special_tokens.keys() >= set(entry.roles.values())), None)


def find_roles(special_tokens: Mapping[str, int], eos_ids: tuple[int, ...]) -> Specials:
    """Roles that the checkpoint itself has tokens for, by their usual names."""
    found = {role: next((n for n in names if n in special_tokens), None) for role, names in _USUAL_NAMES.items()}
    return Specials(eos_ids=eos_ids).with_ids({role: special_tokens[n] for role, n in found.items() if n})


def reserve_roles(roles: Specials, special_tokens: Mapping[str, int]) -> Specials:
    """`roles`, with spare tokens for those that are still open; a token of the checkpoint's own is never displaced."""
    entry = reserved_for(special_tokens)
    if entry is None:
        return roles
    taken = dict(roles.named())
    return roles.with_ids({role: special_tokens[n] for role, n in entry.roles.items() if role not in taken})
