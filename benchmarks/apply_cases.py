"""Builds apply-edit cases from source files: a file, an update snippet, and the expected result.

A case is a function of the file and a seed. Eight kinds: a function rewritten, a method added, a function inserted
between two elided ones, a definition deleted, a signature changed, imports added, two functions rewritten at once, and
a line changed or removed in a function that is shown only around it. Markers use the comment styles of the language.
Of files with syntax errors, only functions without errors are changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quicksilver.editing.languages import LANGUAGES, Language
from quicksilver.editing.outline import Definition, Outline, read_outline
from quicksilver.editing.splice import balance

_TEXTS = ("... existing code ...", "... rest of the code ...", "... existing methods ...", "...", "... unchanged ...")
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
    abstract assert async auto await begin boolean break case catch chan char class companion const constexpr
    continue crate decltype default defer delete double dyn echo elif else ensure enum explicit export extends
    extension false fileprivate final finally float foreach friend from func function guard impl implements import
    init inline inout instanceof interface internal lambda lateinit long loop match module move mutating namespace
    noexcept null nullptr number object operator override package pass private protected protocol public raise range
    readonly require rescue rethrows return select self short signed sizeof some static string struct super suspend
    switch template then this throw throws trait true type typename typeof undefined unless unsigned until using
    virtual void weak when where while with yield
    """,
    )
)
_IMPORT = re.compile(r"(import|from|use|using|#include|require|require_relative)\b.*[^({,\\\\]")


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    language: str
    original: str
    update: str
    expected: str
    has_file_errors: bool


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
        return [d for d in found if names.count(d.name) == 1 and not d.children and self.is_sound(d)]

    def is_sound(self, definition: Definition) -> bool:
        """Whether the definition has no syntax errors. Its extent is not certain otherwise."""
        if not self.outline.num_errors:
            return True
        alone = read_outline(self.lines[definition.start : definition.end], self.language)
        return not alone.num_errors and [each.name for each in alone.definitions] == [definition.name]

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
        is_inside = all(line.startswith((indent, "#")) for line in lines if line.strip())
        if self.rng.random() < 0.3 and is_inside:
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
        and all(map(file.is_sound, run))
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
    functions = [
        d for d in file.functions() if re.search(r"\(\s*\w", " ".join(file.header(d))) and re.search(r"\w", d.name)
    ]
    if not functions:
        return None
    chosen = file.rng.choice(functions)
    header = list(file.header(chosen))
    at = next((i for i, line in enumerate(header) if re.search(r"\(\s*\w", line)), None)
    if at is None:
        return None
    header[at] = re.sub(r"\((\s*)(\w+)", r"(\1\2_changed", header[at], count=1)
    if not re.search(rf"\b{re.escape(_last(chosen.name))}\b", " ".join(header)):
        return None  # The word is the name itself, as in `TEST(name) {`.
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


def _lines(file: _File) -> tuple[list[str], str] | None:
    """A line of a function is changed or removed. The update shows the header and two lines on each side."""
    places = [(d, at) for d in file.functions() for at in range(d.low + 2, d.high - 2) if _is_block(file, at)]
    if not places:
        return None
    chosen, at = file.rng.choice(places)
    names = [word for word in re.findall(r"\b[a-z]\w{3,}\b", file.lines[at]) if word not in _KEYWORDS]
    if not names:
        return None
    changed = [re.sub(rf"\b{file.rng.choice(names)}\b", "renamed", file.lines[at])] if file.rng.random() < 0.5 else []
    shown = [*file.lines[at - 2 : at], *changed, *file.lines[at + 1 : at + 3]]
    body = [file.marker(file.indent(at - 2)), *shown, file.marker(file.indent(at - 2))]
    update = [*file.header(chosen), *body, *file.lines[chosen.high : chosen.end]]
    return file.within(chosen, update), file.replaced(at, at + 1, changed)


def _is_block(file: _File, at: int) -> bool:
    """Whether the five lines around `at` are whole statements: none ends a block that began above them."""
    lines = file.lines[at - 2 : at + 3]
    text = "\n".join([*lines[:2], *lines[3:]])
    is_closed = balance(text) == balance(lines[2]) == (0, 0, 0) and not re.search(r"[\"\'`]{3}|\*/", text)
    indents = [len(line) - len(line.lstrip()) for line in lines]
    return is_closed and all(line.strip() for line in lines) and indents == [indents[0]] * len(lines)


_KINDS: dict[str, Callable[[_File], tuple[list[str], str] | None]] = {
    "rewrite": _rewrite,
    "add": _add,
    "insert": _insert,
    "delete": _delete,
    "signature": _signature,
    "imports": _imports,
    "two": _two,
    "lines": _lines,
}


def _last(name: str) -> str:
    return re.findall(r"\w+", name)[-1]


def cases(text: str, language_name: str, seed: int) -> Iterator[Case]:
    """One case of each kind that the file allows."""
    language = next(language for language in LANGUAGES if language.name == language_name)
    lines = text.removesuffix("\n").split("\n")
    outline = read_outline(lines, language)
    if not outline.definitions:
        return
    end = "\n" if text.endswith("\n") else ""
    for kind, build in _KINDS.items():
        # Without the text in the seed, all files would draw the same choices.
        made = build(_File(lines, outline, random.Random(f"{seed} {kind} {text}")))
        if made is None or made[1] == "\n".join(lines):
            continue
        if read_outline(made[1].split("\n"), language).num_errors <= outline.num_errors:
            yield Case(kind, language_name, text, "\n".join(made[0]), made[1] + end, bool(outline.num_errors))
