"""Builds apply-edit cases from source files: a file, an update snippet, and the expected result.

A case is a function of the file and a seed. Seven kinds: a function rewritten, a method added, a function inserted
between two elided ones, a definition deleted, a signature changed, imports added, and two functions rewritten at once.
Markers use the comment styles of the language.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quicksilver.editing.languages import LANGUAGES, Language
from quicksilver.editing.outline import Definition, Outline, read_outline

_TEXTS = ("... existing code ...", "... rest of the code ...", "... existing methods ...", "...", "... unchanged ...")
_KEYWORDS = frozenset(
    [
        "abstract",
        "assert",
        "async",
        "auto",
        "await",
        "begin",
        "boolean",
        "break",
        "case",
        "catch",
        "chan",
        "char",
        "class",
        "companion",
        "const",
        "constexpr",
        "continue",
        "crate",
        "decltype",
        "default",
        "defer",
        "delete",
        "double",
        "dyn",
        "echo",
        "elif",
        "else",
        "ensure",
        "enum",
        "explicit",
        "export",
        "extends",
        "extension",
        "false",
        "fileprivate",
        "final",
        "finally",
        "float",
        "foreach",
        "friend",
        "from",
        "func",
        "function",
        "guard",
        "impl",
        "implements",
        "import",
        "init",
        "inline",
        "inout",
        "instanceof",
        "interface",
        "internal",
        "lambda",
        "lateinit",
        "long",
        "loop",
        "match",
        "module",
        "move",
        "mutating",
        "namespace",
        "noexcept",
        "null",
        "nullptr",
        "number",
        "object",
        "operator",
        "override",
        "package",
        "pass",
        "private",
        "protected",
        "protocol",
        "public",
        "raise",
        "range",
        "readonly",
        "require",
        "rescue",
        "rethrows",
        "return",
        "select",
        "self",
        "short",
        "signed",
        "sizeof",
        "some",
        "static",
        "string",
        "struct",
        "super",
        "suspend",
        "switch",
        "template",
        "then",
        "this",
        "throw",
        "throws",
        "trait",
        "true",
        "type",
        "typename",
        "typeof",
        "undefined",
        "unless",
        "unsigned",
        "until",
        "using",
        "virtual",
        "void",
        "weak",
        "when",
        "where",
        "while",
        "with",
        "yield",
    ]
)
_IMPORT = re.compile(r"(import|from|use|using|#include|require|require_relative)\b.*[^({,\\\\]")


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    language: str
    original: str
    update: str
    expected: str


@dataclass(frozen=True, slots=True)
class _File:
    lines: list[str]
    outline: Outline
    rng: random.Random

    @property
    def language(self) -> Language:
        return self.outline.language

    def marker(self, indent: str = "") -> str:
        comment, text = self.language.line_comment, self.rng.choice(_TEXTS)
        styles = (
            [f"{comment} {text}"] if comment == "#" else [f"{comment} {text}", f"{comment} {text}", f"/* {text} */"]
        )
        return indent + self.rng.choice(styles)

    def indent(self, line: int) -> str:
        text = self.lines[line]
        return text[: len(text) - len(text.lstrip())]

    def parents(self) -> dict[int, Definition]:
        """The enclosing definition of each definition, by identity."""
        return {id(child): parent for parent in self.outline.walk() for child in parent.children}

    def functions(self) -> list[Definition]:
        """Functions with a body of at least two lines whose kind and name are unique in the file."""
        found = [d for d in self.outline.walk() if d.kind == "function" and d.high - d.low >= 2 and d.low > d.head]
        names = [d.name for d in self.outline.walk()]
        return [d for d in found if names.count(d.name) == 1 and not d.children]

    def header(self, definition: Definition) -> list[str]:
        return self.lines[definition.head : definition.low]

    def elided(self, definition: Definition) -> list[str]:
        """The definition with a marker for its body."""
        inner = self.indent(definition.low)
        return [*self.header(definition), self.marker(inner), *self.lines[definition.high : definition.end]]

    def rewritten(self, definition: Definition) -> list[str]:
        """The definition with one line duplicated as a changed copy."""
        body = [i for i in range(definition.low, definition.high) if self.lines[i].strip()]
        at = self.rng.choice(body)
        names = [word for word in re.findall(r"\b[a-z]\w{3,}\b", self.lines[at]) if word not in _KEYWORDS]
        changed = re.sub(rf"\b{self.rng.choice(names)}\b", "renamed", self.lines[at]) if names else self.lines[at]
        return [*self.lines[definition.start : at], changed, *self.lines[at + 1 : definition.end]]

    def within(self, definition: Definition, lines: Sequence[str]) -> list[str]:
        """The lines inside the header of the enclosing definition, or alone, with markers around them."""
        parent = self.parents().get(id(definition))
        if parent is None or parent.low >= parent.high:
            return [self.marker(), "", *lines, "", self.marker()]
        indent = self.indent(definition.head)
        if self.rng.random() < 0.3:
            return [line[len(indent) :] if line.startswith(indent) else line for line in lines]
        closing = self.lines[parent.high : parent.end]
        body = [self.marker(indent), "", *lines, "", self.marker(indent)]
        return [*self.header(parent), *body, *closing]

    def replaced(self, start: int, end: int, lines: Sequence[str]) -> str:
        return "\n".join([*self.lines[:start], *lines, *self.lines[end:]])


def _rewrite(file: _File) -> tuple[list[str], str] | None:
    functions = file.functions()
    if not functions:
        return None
    chosen = file.rng.choice(functions)
    lines = file.rewritten(chosen)
    return file.within(chosen, lines), file.replaced(chosen.start, chosen.end, lines)


def _add(file: _File) -> tuple[list[str], str] | None:
    """A renamed copy of a function is added after another one, which is shown with its body elided."""
    functions = [d for d in file.functions() if re.search(r"\w", d.name)]  # operators cannot be renamed
    if not functions:
        return None
    anchor = file.rng.choice(functions)
    copy = [
        re.sub(rf"\b{re.escape(_last(anchor.name))}\b", "added_one", x) for x in file.lines[anchor.head : anchor.end]
    ]
    gap = [""] * file.rng.choice((1, 1, 2))
    update = file.within(anchor, [*file.elided(anchor), *gap, *copy])
    return update, file.replaced(anchor.end, anchor.end, [*gap, *copy])


def _runs(file: _File) -> list[tuple[Definition, Definition, Definition]]:
    """Three functions that follow each other, with unique names and only blank lines between them."""
    groups = [file.outline.definitions, *(d.children for d in file.outline.walk())]
    names = [d.name for d in file.outline.walk()]
    return [
        run
        for group in groups
        for run in zip(group, group[1:], group[2:], strict=False)
        if all(
            d.kind == "function" and d.high - d.low >= 1 and d.low > d.head and names.count(d.name) == 1 for d in run
        )
        and not any(line.strip() for a, b in pairwise(run) for line in file.lines[a.end : b.start])
    ]


def _insert(file: _File) -> tuple[list[str], str] | None:
    """A renamed copy of a function is added between that function and the next one, or the one after that. Both are
    elided, and there is no marker between them."""
    runs = [run for run in _runs(file) if re.search(r"\w", run[0].name)]
    if not runs:
        return None
    first, second, third = file.rng.choice(runs)
    name = re.escape(_last(first.name))
    copy = [re.sub(rf"\b{name}\b", "added_one", line) for line in file.lines[first.head : first.end]]
    gap = file.lines[first.end : second.start]
    following = file.elided(file.rng.choice((second, third)))
    update = file.within(first, [*file.elided(first), *gap, *copy, *gap, *following])
    return update, file.replaced(first.end, first.end, [*gap, *copy])


def _delete(file: _File) -> tuple[list[str], str] | None:
    runs = _runs(file)
    if not runs:
        return None
    first, second, third = file.rng.choice(runs)
    gap = file.lines[second.end : third.start]
    update = file.within(first, [*file.elided(first), *gap, *file.elided(third)])
    return update, file.replaced(first.end, third.start, gap)


def _signature(file: _File) -> tuple[list[str], str] | None:
    functions = [d for d in file.functions() if re.search(r"\(\s*\w", " ".join(file.header(d)))]
    if not functions:
        return None
    chosen = file.rng.choice(functions)
    header = list(file.header(chosen))
    at = next((i for i, line in enumerate(header) if re.search(r"\(\s*\w", line)), None)
    if at is None:
        return None
    header[at] = re.sub(r"\((\s*)(\w+)", r"(\1\2_changed", header[at], count=1)
    inner = file.indent(chosen.low)
    update = [*header, file.marker(inner), *file.lines[chosen.high : chosen.end]]
    return file.within(chosen, update), file.replaced(chosen.head, chosen.low, header)


def _imports(file: _File) -> tuple[list[str], str] | None:
    first = file.outline.definitions[0].start
    found = [i for i in range(first) if _IMPORT.fullmatch(file.lines[i].rstrip())]
    runs = [i for i in found if i + 1 not in found]
    if not runs:
        return None
    at = runs[0]
    words = re.findall(r"\w+", file.lines[at])
    new = file.lines[at].replace(words[-1], f"{words[-1]}_extra")
    shown = [i for i in found if at - 2 <= i <= at]
    return [*(file.lines[i] for i in shown), new, "", file.marker()], file.replaced(at + 1, at + 1, [new])


def _two(file: _File) -> tuple[list[str], str] | None:
    parents = file.parents()
    functions = file.functions()
    pairs = [
        (a, b)
        for a in functions
        for b in functions
        if a.end < b.start and parents.get(id(a)) is parents.get(id(b)) and b.start - a.end > 1
    ]
    if not pairs:
        return None
    first, second = file.rng.choice(pairs)
    one, two = file.rewritten(first), file.rewritten(second)
    update = file.within(first, [*one, "", file.marker(file.indent(first.head)), "", *two])
    middle = file.lines[first.end : second.start]
    return update, file.replaced(first.start, second.end, [*one, *middle, *two])


_KINDS: dict[str, Callable[[_File], tuple[list[str], str] | None]] = {
    "rewrite": _rewrite,
    "add": _add,
    "insert": _insert,
    "delete": _delete,
    "signature": _signature,
    "imports": _imports,
    "two": _two,
}


def _last(name: str) -> str:
    return re.findall(r"\w+", name)[-1]


def cases(text: str, language_name: str, seed: int) -> Iterator[Case]:
    """One case of each kind that the file allows."""
    language = next(language for language in LANGUAGES if language.name == language_name)
    lines = text.removesuffix("\n").split("\n")
    outline = read_outline(lines, language)
    if not outline.definitions or outline.num_errors:
        return
    for kind, build in _KINDS.items():
        # Without the text in the seed, all files would draw the same choices.
        made = build(_File(lines, outline, random.Random(f"{seed} {kind} {text}")))
        if made is None or made[1] == "\n".join(lines) or read_outline(made[1].split("\n"), language).num_errors:
            continue
        if made is not None:
            yield Case(kind, language_name, text, "\n".join(made[0]), made[1] + ("\n" if text.endswith("\n") else ""))
