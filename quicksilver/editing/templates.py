"""Prompt templates of code models, recognised in plain text: fill-in-the-middle marks, and next-edit forms.

Editors with support for a template send it rendered, as the prompt of a completion. A template is recognised only if
all of its marks occur, each once and in order; any other prompt is plain text. The text between marks stays plain text,
so no special token can be smuggled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quicksilver.editing.edit_request import CURSOR, EditRequest


@dataclass(frozen=True, slots=True)
class FimParts:
    prefix: str
    suffix: str
    # The other files of the repository.
    context: str = ""

    @property
    def before(self) -> str:
        return self.context + self.prefix


@dataclass(frozen=True, slots=True)
class EditTemplate:
    """A next-edit prompt, and how its editor reads the rewritten region."""

    request: EditRequest
    write_reply: Callable[[str], str]


# Prefix, suffix and middle marks, in this order: Qwen, CodeGemma and Granite; StarCoder; SantaCoder; DeepSeek; GLM;
# Seed-Coder.
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
)
# Families whose own order is suffix, prefix, middle.
_SUFFIX_FIRST = tuple((suffix, prefix, middle) for prefix, suffix, middle in _FAMILIES[-2:])
# Prefix mark -> the marks before the name of a repository and before each of its files.
_REPOSITORY = {"<|fim_prefix|>": ("<|repo_name|>", "<|file_sep|>"), "<fim_prefix>": ("<repo_name>", "<file_sep>")}
_CODE_LLAMA = ("<PRE> ", " <SUF>", " <MID>")
_CODESTRAL = ("[SUFFIX]", "[PREFIX]")

_ZETA_REGION = ("<|editable_region_start|>", "<|editable_region_end|>")
_ZETA_CURSOR, _ZETA_FILE = "<|user_cursor_is_here|>", "<|start_of_file|>\n"
_ZETA_PARTS = ("### User Edits:", "### User Excerpt:", "### Response:")
_FENCED = re.compile(r"```([^\n]*)\n(.*)\n```\s*", re.DOTALL)
_ZETA_EVENT = re.compile(r"```diff\n(.*?)\n```", re.DOTALL)

_SWEEP_FILE = "<|file_sep|>"
_SWEEP_DIFF = re.compile(r"(.*)\.diff\noriginal:\n(.*)\nupdated:\n(.*)", re.DOTALL)


def read_fim(prompt: str) -> FimParts | None:
    """The parts of a fill-in-the-middle prompt; None if it is not exactly one template."""
    for marks in _FAMILIES:
        parts = _split(prompt, marks)
        if parts is not None:
            return _order(_REPOSITORY.get(marks[0]), *parts)
    for marks in _SUFFIX_FIRST:
        parts = _split(prompt, marks)
        if parts is not None:
            return FimParts(parts[2], parts[1]) if not parts[0].strip() and not parts[3] else None
    parts = _split(prompt, _CODE_LLAMA)
    if parts is not None:
        before, prefix, suffix, rest = parts
        return FimParts(prefix, suffix) if before in ("", "<s>") and not rest.strip() else None
    parts = _split(prompt, _CODESTRAL)
    if parts is None or parts[0] not in ("", "<s>"):
        return None
    return FimParts(prefix=parts[2], suffix=parts[1])


def _order(repository: tuple[str, str] | None, before: str, prefix: str, suffix: str, rest: str) -> FimParts | None:
    """Most editors write prefix, suffix, middle. With an empty prefix the text after the middle mark is the prefix."""
    context = _read_files(before, *repository) if repository else None if before.strip() else ""
    if context is None or (prefix and rest):
        return None
    return FimParts(prefix or rest, suffix, context)


def _read_files(before: str, repository: str, file: str) -> str | None:
    """The other files of a repository, with their paths; None if something else comes before the prefix. The file with
    the gap is the last one, and has its path only."""
    head, *files = before.split(file)
    name = head.strip().removeprefix(repository)
    current = files[-1].strip() if files else ""
    if (name and name == head.strip()) or "\n" in name or "\n" in current:
        return None
    return "".join(f"{text.strip()}\n\n" for text in files[:-1])


def _split(text: str, marks: Sequence[str]) -> list[str] | None:
    """The texts before, between and after the marks; None unless each occurs once and they are in order."""
    if any(text.count(mark) != 1 for mark in marks):
        return None
    parts, rest = list[str](), text
    for mark in marks:
        part, found, rest = rest.partition(mark)
        if not found:
            return None
        parts.append(part)
    return [*parts, rest]


def read_edit(prompt: str) -> EditTemplate | None:
    """The parts of a next-edit prompt; None if it is not exactly one template."""
    return _read_zeta(prompt) or _read_sweep(prompt)


def _read_zeta(prompt: str) -> EditTemplate | None:
    """Zed's form: sections with the recent edits and an excerpt whose editable region is marked."""
    sections = _split(prompt, _ZETA_PARTS)
    if sections is None or sections[3].strip():
        return None
    excerpt = _FENCED.fullmatch(sections[2].strip())
    parts = _split(excerpt[2], _ZETA_REGION) if excerpt else None
    if excerpt is None or parts is None:
        return None
    before, region, after = parts
    region = region.removeprefix("\n").removesuffix("\n")
    at = region.find(_ZETA_CURSOR)
    request = EditRequest(
        path=excerpt[1].strip(),
        before=before.replace(_ZETA_FILE, "", 1),
        region=region.replace(_ZETA_CURSOR, "", 1),
        after=after,
        cursor=at if at >= 0 else None,
        history=tuple(_ZETA_EVENT.findall(sections[1])),
    )
    start, end = _ZETA_REGION
    return EditTemplate(request, lambda rewritten: f"{start}\n{rewritten}\n{end}")


def _read_sweep(prompt: str) -> EditTemplate | None:
    """Sweep's form: files separated by a mark; the last ones are the original, the current and the updated window."""
    before, *files = prompt.split(_SWEEP_FILE)
    if before.strip() or len(files) < 3:
        return None
    *context, original, current, updated = (file.partition("\n") for file in files)
    path = current[0].removeprefix("current/")
    names = (original[0], current[0], updated[0].strip())
    if names != (f"original/{path}", f"current/{path}", f"updated/{path}") or updated[2].strip():
        return None
    history = [_diff(found) for file in context if (found := _SWEEP_DIFF.fullmatch("".join(file).rstrip("\n")))]
    region = current[2].removesuffix("\n")
    at = region.find(CURSOR)
    request = EditRequest(path, "", region.replace(CURSOR, "", 1), "", at if at >= 0 else None, history=tuple(history))
    return EditTemplate(request, lambda rewritten: f"{rewritten}\n")


def _diff(found: re.Match[str]) -> str:
    """The change of one recent edit, as a unified diff."""
    path, old, new = found[1], found[2].split("\n"), found[3].split("\n")
    lines = [f"--- {path}", f"+++ {path}", f"@@ -1,{len(old)} +1,{len(new)} @@"]
    return "\n".join([*lines, *(f"-{line}" for line in old), *(f"+{line}" for line in new)])
