"""The definitions of a source text as a tree of line ranges, read with tree-sitter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from quicksilver.editing.languages import ENCLOSING_NAME, Language, guess_languages, parser
from quicksilver.editing.nesting import is_parseable
from quicksilver.editing.splice import is_closer, is_marker

# A macro alone on a line, such as `API_EXPORT`. The parser of C takes it for a part of the definition below.
_MACRO = re.compile(r"\s*[A-Z][A-Z0-9]*_[A-Z0-9_]+\s*")
_COMMENT_OR_DECORATOR = re.compile(
    rf"\s*(//|#(?!include|define|if|endif|el|pragma)|/?\*|--|@\w|\[\w[^=]*\]\s*$|<!--)|{_MACRO.pattern}$"
)
_NAME_FIELDS = ("name", "declarator", "type", "left", "selectors", "key")
_NAMED_VALUES = frozenset(
    (
        *("arrow_function", "function_expression", "function", "generator_function", "class", "object"),
        *("call_expression", "as_expression", "satisfies_expression"),
    )
)
_UNNAMED = {"init_declaration": "init", "companion_object": "Companion"}
_MAX_DEPTH = 24
# Longer files are merged by lines: parsing takes about 20 ms for each 100,000 characters.
MAX_CHARS = 400_000
_SINGLE_ELEMENTS = frozenset(("html", "head", "body", "header", "main", "footer", "title", "nav"))


@dataclass(slots=True, eq=False)
class Definition:
    """Lines `[start, end)`. `head` is the first line after comments and decorators; `[low, high)` is the body."""

    kind: str
    name: str
    start: int
    head: int
    low: int
    high: int
    end: int
    children: list[Definition] = field(default_factory=list)

    def walk(self) -> Iterator[Definition]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Outline:
    language: Language
    definitions: tuple[Definition, ...]
    num_errors: int
    # The lines on which an error begins.
    error_lines: frozenset[str] = frozenset()

    def walk(self) -> Iterator[Definition]:
        for definition in self.definitions:
            yield from definition.walk()


def read_outline(lines: Sequence[str], language: Language) -> Outline:
    """Parse the lines. A fragment that does not parse alone is parsed inside the enclosure of its language."""
    plain = _parse(lines, language, 0)
    if plain.num_errors == 0 and plain.definitions:
        return plain
    found = [plain, *(_enclosed(lines, language, *enclosure) for enclosure in language.enclosures)]
    return min(found, key=lambda outline: (outline.num_errors, -len(outline.definitions)))


def _enclosed(lines: Sequence[str], language: Language, opening: str, closing: str) -> Outline:
    whole = _parse([opening, *lines, closing], language, 1)
    definitions = whole.definitions
    if len(definitions) == 1 and definitions[0].name == ENCLOSING_NAME:
        definitions = tuple(definitions[0].children)
    inside = tuple(each for each in definitions if each.start >= 0 and each.end <= len(lines))
    # A definition that is not closed in the fragment takes the closing line of the enclosure.
    num_errors = whole.num_errors + len(definitions) - len(inside)
    return Outline(language, inside, num_errors, whole.error_lines)


def best_outline(lines: Sequence[str], candidates: Sequence[Language]) -> Outline | None:
    """The outline with the fewest syntax errors; the first candidate wins a tie. None if there are no definitions."""
    outlines: list[Outline] = []
    for language in candidates:
        outlines.append(read_outline(lines, language))
        if outlines[-1].num_errors == 0:
            break
    best = min(outlines, key=lambda outline: outline.num_errors, default=None)
    return best if best is not None and best.definitions else None


@lru_cache(maxsize=2)
def outline_of(text: str) -> Outline | None:
    """The outline of a file, or None if it is too long, nested too deeply or in an unknown language.

    The newest outlines are cached: a file is read for its merge and again for the check of the merge.
    """
    lines = text.split("\n")
    return best_outline(lines, guess_languages(text)) if len(text) <= MAX_CHARS and is_parseable(lines) else None


def _parse(lines: Sequence[str], language: Language, offset: int) -> Outline:
    root = parser(language.name).parse("\n".join(lines).encode("utf-8", "replace")).root_node
    definitions = tuple(_Reader(language, lines, offset).definitions(root, 0))
    spans = [(node.start_point[0], node.end_point[0]) for node in _errors(root)]
    num_errors = sum(1 + last - first for first, last in spans)
    return Outline(language, definitions, num_errors, frozenset(lines[first].strip() for first, _ in spans))


def _errors(root: Any) -> Iterator[Any]:
    """Error and missing nodes."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
        elif node.has_error:
            stack.extend(node.children)


@dataclass(frozen=True, slots=True)
class _Reader:
    language: Language
    lines: Sequence[str]
    offset: int

    def definitions(self, node: Any, depth: int) -> list[Definition]:
        """The outermost definitions below `node`, in order. Definitions that share a line with another are skipped."""
        found: list[Definition] = []
        if depth > _MAX_DEPTH:
            return found
        # Of a node within one line, only the first child can start the line.
        is_one_line = node.start_point[0] == node.end_point[0]
        for child in node.named_children[:1] if is_one_line else node.named_children:
            definition = self._definition(child, child, depth) if child.type in self.language.candidates else None
            inner = (
                [definition] if definition else self.definitions(child, depth + 1) if child.named_child_count else ()
            )
            for one in inner:
                if not found or found[-1].end <= one.start:
                    found.append(one)
        return found

    def _definition(self, node: Any, outer: Any, depth: int) -> Definition | None:
        if node.type in self.language.wrappers:
            inner = [child for child in node.named_children if self._is_candidate(child)]
            return self._definition(inner[-1], outer, depth + 1) if inner and depth < _MAX_DEPTH else None
        kind = self._kind(node)
        name = _name_of(node) if kind else ""
        if not name:
            return None
        first, last = outer.start_point[0], outer.end_point[0]
        starts_line = not self.lines[first][: _column(self.lines[first], outer)].strip()
        if not starts_line or last == first - 1:
            return None
        end = last + 1 if outer.end_point[1] else last
        while end > first + 1 and self._is_after(node, first, end - 1):
            end -= 1
        start = self._lead_start(first)
        head = node.start_point[0] if outer.type == "decorated_definition" else self._head(start, end)
        low, high = _body(node, head, end)
        if kind != "statement" and (low >= end - 1 > head or high == end > low):
            low, high = self._bracketed(head, low, end)
        while low - 1 > head and self._is_lead(low - 1):
            low -= 1  # Comments above the first statement are part of the body.
        children = self.definitions(node, depth + 1)
        return self._shifted(Definition(kind, name, start, head, low, high, end, children))

    def _bracketed(self, head: int, low: int, end: int) -> tuple[int, int]:
        """The body of a definition that is no block, such as a structure or a value: the lines inside its brackets."""
        is_closed = is_closer(self.lines[end - 1]) and _indent(self.lines[end - 1]) <= _indent(self.lines[head])
        opened = (i + 1 for i in range(head, end - 1) if self.lines[i].rstrip().endswith(("{", "(", "[")))
        return (next(opened, low), end - 1) if is_closed else (low, end)

    def _is_candidate(self, node: Any) -> bool:
        return node.type in self.language.wrappers or bool(self._kind(node))

    def _kind(self, node: Any) -> str:
        if node.type in self.language.variables:
            return "variable" if _has_named_value(node) else ""
        if node.type == "expression_statement" and self.language.variables:
            return "statement" if _statement_name(node) else ""
        kind = self.language.definitions.get(node.type, "")
        is_forward = kind == "type" and node.type.endswith("_specifier") and node.child_by_field_name("body") is None
        return "" if is_forward else kind

    def _is_lead(self, line: int) -> bool:
        text = self.lines[line]
        if self.language.name == "markdown":
            return False
        return not text.strip() or (_COMMENT_OR_DECORATOR.match(text) is not None and not is_marker(text))

    def _is_after(self, node: Any, first: int, line: int) -> bool:
        """Whether the last line of a section or YAML key is not part of it: it is blank, or a marker that stands for
        the sections or keys that follow."""
        text = self.lines[line]
        is_outside = node.type == "section" or _indent(text) <= _indent(self.lines[first])
        return node.type in ("section", "block_mapping_pair") and (not text.strip() or (is_outside and is_marker(text)))

    def _head(self, start: int, end: int) -> int:
        """The first line after comments and annotations, which may have arguments over several lines."""
        line = start
        while line < end - 1 and self._is_lead(line):
            last = annotation_end(self.lines, line, end)
            line = last if last < end else line + 1
        return line

    def _lead_start(self, line: int) -> int:
        """The first line of the comments and attributes directly above, at the same indentation."""
        indent = _indent(self.lines[line])
        while line > self.offset and self.lines[line - 1].strip() and self._is_lead(line - 1):
            if _indent(self.lines[line - 1]) < indent:
                break
            line -= 1
        return line

    def _shifted(self, found: Definition) -> Definition:
        for name in ("start", "head", "low", "high", "end") if self.offset else ():
            setattr(found, name, getattr(found, name) - self.offset)
        return found


def annotation_end(lines: Sequence[str], line: int, end: int) -> int:
    """The line after the annotation or decorator that starts at `line`, or after the line if it is neither."""
    if not is_decorator(lines[line]):
        return line + 1
    depth = 0
    for at in range(line, end):
        depth += sum(lines[at].count(bracket) for bracket in "([{") - sum(map(lines[at].count, ")]}"))
        if depth <= 0:
            return at + 1
    return end


def is_decorator(line: str) -> bool:
    return line.lstrip().startswith(("@", "#[", "[")) or _MACRO.fullmatch(line) is not None


def _column(line: str, node: Any) -> int:
    """The start column in characters. tree-sitter counts bytes."""
    return len(line.encode("utf-8", "replace")[: node.start_point[1]].decode("utf-8", "replace"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _has_named_value(node: Any) -> bool:
    """Whether a variable holds a function, class or object over several lines."""
    if node.start_point[0] == node.end_point[0]:
        return False
    declarators = [child for child in node.named_children if child.type == "variable_declarator"]
    value = (declarators[0] if len(declarators) == 1 else node).child_by_field_name("value")
    return value is not None and value.type in _NAMED_VALUES and len(declarators) <= 1


def _body(node: Any, head: int, end: int) -> tuple[int, int]:
    """Lines between the header and the closing line. Languages without braces end the body with the definition."""
    if node.type.endswith("element"):
        return min(node.named_children[0].end_point[0] + 1, end), node.named_children[-1].start_point[0]
    if node.type == "section":
        return min(head + 1, end), end
    body = _body_node(node)
    if body is None:
        return end, end
    has_braces = body.children and body.children[0].type == "{"
    if has_braces:
        return min(body.start_point[0] + 1, end), max(body.end_point[0], head)
    low = body.start_point[0] if body.start_point[0] > head else head + 1
    closes = node.children and node.children[-1].type in ("end", "}")
    return min(low, end), end - 1 if closes else end


def _body_node(node: Any) -> Any:
    """The block of a definition. The value of a variable or of a statement has the block, or is one."""
    if node.type in ("lexical_declaration", "variable_declaration"):
        return _body_node(node.named_children[-1])
    if node.type == "expression_statement":
        inner = node.named_children[0]
        arguments = inner.child_by_field_name("arguments")
        return _body_node(inner.child_by_field_name("right") or arguments.named_children[-1])
    if node.type == "object":
        return node
    value = node.child_by_field_name("value")
    if node.type == "block_mapping_pair":
        return value if value is not None and value.type == "block_node" else None
    blocks = (child for child in node.named_children if child.type.endswith(("body", "block", "declaration_list")))
    return node.child_by_field_name("body") or (_body_node(value) if value is not None else next(blocks, None))


def _name_of(node: Any) -> str:
    """The identifier of a definition; methods of Go and blocks of Rust include their type."""
    if node.type == "section":
        return next((str(each.text.decode().strip()) for each in node.named_children[:1] if "heading" in each.type), "")
    if node.type.endswith("element"):
        return _element_name(node)
    if node.type in ("lexical_declaration", "variable_declaration", "type_declaration"):
        inner = [child for child in node.named_children if child.child_by_field_name("name") is not None]
        return _name_of(inner[0]) if inner else ""
    if node.type == "expression_statement":
        return _statement_name(node)
    if node.type == "impl_item":
        parts = (node.child_by_field_name(name) for name in ("trait", "type"))
        return " for ".join(part.text.decode() for part in parts if part is not None)
    receiver = node.child_by_field_name("receiver")
    prefix = re.sub(r"[^\w.]|\b\w+ (?=\*?\w+\))", " ", receiver.text.decode()).split()[-1:] if receiver else []
    for name in _NAME_FIELDS:
        found = node.child_by_field_name(name)
        if found is not None:
            return ".".join([*prefix, _innermost(found)])
    identifiers = [child for child in node.named_children if child.type.endswith(("identifier", "selectors"))]
    return identifiers[0].text.decode() if identifiers else _UNNAMED.get(node.type, "")


def _element_name(node: Any) -> str:
    """Tag and id of an element; without an id only those of elements that a page has once."""
    tag = next((child for child in node.named_children if child.type == "start_tag"), None)
    if tag is None or node.start_point[0] == node.end_point[0]:
        return ""
    name = tag.named_children[0].text.decode()
    found = re.search(r"""\bid=["']?([\w-]+)""", tag.text.decode())
    return f"{name}#{found[1]}" if found else name if name in _SINGLE_ELEMENTS else ""


def _statement_name(node: Any) -> str:
    """The name of `target = function …` and of calls such as `describe("title", function …)`."""
    inner = node.named_children[0] if node.named_children else node
    if inner.type == "assignment_expression" and inner.child_by_field_name("right").type in _NAMED_VALUES:
        return str(inner.child_by_field_name("left").text.decode())
    if inner.type != "call_expression" or node.start_point[0] == node.end_point[0]:
        return ""
    arguments = inner.child_by_field_name("arguments").named_children
    if len(arguments) < 2 or arguments[0].type not in ("string", "template_string"):
        return ""
    callee, title = inner.child_by_field_name("function"), arguments[0]
    return f"{callee.text.decode()} {title.text.decode()}" if arguments[-1].type in _NAMED_VALUES else ""


def _innermost(node: Any) -> str:
    """The name inside nested C declarators. Those of references and in parentheses have no field."""
    while (inner := node.child_by_field_name("declarator") or _unnamed_declarator(node)) is not None:
        node = inner
    return str(node.text.decode())


def _unnamed_declarator(node: Any) -> Any:
    is_wrapper = node.type in ("reference_declarator", "parenthesized_declarator") and node.named_children
    return node.named_children[-1] if is_wrapper else None
