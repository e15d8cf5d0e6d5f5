"""What a checkpoint's chat template may compute, and how text from outside is quoted in it.

The Jinja environment has listed filters, tests, functions and string methods only, and bounds on the size of every
value that a template can build. Time is bounded by a look at the clock in every loop and macro. A single long-running
filter is not interrupted here: the server renders such templates in a process with limits of its own.

A quoted string contains break characters, so that in the rendered prompt no special token can begin, end or be inside
it, whatever the template adds to it or strips from it. `unquote` returns exactly the text that was quoted.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Sized
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from quicksilver.errors import InvalidRequest

_BREAK, _QUOTE = "\U0010fffc", "\U0010fffd"
_UNQUOTE = re.compile(f"{_QUOTE}([{_QUOTE}{_BREAK}])|[{_QUOTE}{_BREAK}]")

# Words of JSON Schema that templates compare with. They are not quoted. None of them can form a special token.
_SCHEMA_WORDS = frozenset(
    {"type", "properties", "required", "description", "enum", "items", "anyOf", "oneOf", "allOf", "default", "format"}
    | {"title", "nullable", "additionalProperties", "const", "minimum", "maximum", "$ref", "$defs", "pattern"}
    | {"string", "number", "integer", "object", "array", "boolean", "null"}
)


class Quoting:
    """Quoting for the special tokens of one tokenizer."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        names = list(special_tokens)
        first, last = {name[0] for name in names}, {name[-1] for name in names}
        self._edges = {char: _BREAK * (char in last) + char + _BREAK * (char in first) for char in sorted(first | last)}
        self._longest = max(map(len, names), default=0)

    def quote(self, text: str) -> str:
        if text in _SCHEMA_WORDS:
            return text
        safe = text.replace(_QUOTE, _QUOTE * 2).replace(_BREAK, _QUOTE + _BREAK)
        for char, broken in self._edges.items():
            safe = safe.replace(char, broken)
        # A short text could be the middle of a special token whose first and last characters come from the template.
        return re.sub(r"(?=\S)", _BREAK, safe, count=1) if len(text.strip()) < self._longest else safe

    def quote_json(self, value: Any) -> Any:
        """A JSON value with every string in it quoted, keys included."""
        if isinstance(value, str):
            return self.quote(value)
        if isinstance(value, dict):
            return {self.quote(str(key)): self.quote_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.quote_json(item) for item in value]
        return value


def unquote(text: str) -> str:
    """Text as it was before quoting."""
    if _QUOTE not in text:
        return text.replace(_BREAK, "")
    return _UNQUOTE.sub(lambda match: match[1] or "", text)


MAX_SECONDS = 2.0
# Characters of a prompt, and of every string on the way to it.
MAX_CHARS = 8 << 20
# Elements of a list that a template builds.
MAX_ITEMS = 100_000
MAX_INT_BITS = 128

# Words of each list, separated by spaces.
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float int items join last length list lower map max min "
    "reject rejectattr replace reverse round safe select selectattr sort string sum title trim unique upper"
)
_TESTS = (
    "boolean defined divisibleby eq equalto even false float ge greaterthan gt in integer iterable le lessthan lt "
    "lower mapping ne none number odd sameas sequence string true undefined upper == != > >= < <="
)
_FUNCTIONS = "dict namespace range"
_STRING_METHODS = (
    "capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace "
    "isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split "
    "splitlines startswith strip title upper"
)
STRING_METHODS = frozenset(_STRING_METHODS.split())


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters = {name: _bounded(self.filters[name]) for name in _FILTERS.split()}
        self.filters.update(tojson=_bounded(_to_json), join=_join, replace=_replace, sum=_sum)
        self.tests = {name: self.tests[name] for name in _TESTS.split()}
        self.globals = {name: self.globals[name] for name in _FUNCTIONS.split()}
        self.globals.update(raise_exception=_raise, strftime_now=_now)

    def compile_bounded(self, source: str) -> Any:
        """The template, with a look at the clock in every loop and macro, and `~` bounded."""
        tree = _BoundConcat().visit(self.parse(source))
        _add_ticks(tree, self)
        return self.from_string(tree)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # type: ignore[override]
        """Joins what a block, macro or template has written."""
        return _join_bounded("", list(parts))

    @staticmethod
    def concat_values(*values: object) -> str:
        """The operator `~`."""
        return _join_bounded("", [str(value) for value in values])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right), left)
        elif operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise SecurityError(f"{operator} is for numbers only, and powers are refused")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MAX_INT_BITS:
            raise SecurityError(f"an integer of more than {MAX_INT_BITS} bits")
        return result

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args, **kwargs)
        if isinstance(owner, str) and name == "join":
            return _join_bounded(owner, list(*args))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        if re.search(r"\d{4}|:[^}]*\{", value.__self__):
            raise SecurityError("a format that wide")
        num_fields = value.__self__.count("{")

        def format_bounded(*args: Any, **kwargs: Any) -> str:
            longest = max((len(str(arg)) for arg in (*args, *kwargs.values())), default=0)
            check_chars(len(value.__self__) + num_fields * longest)
            return wrapped(*args, **kwargs)

        return format_bounded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundConcat(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("concat_values"), node.nodes, [], None, None)
        call.environment = node.environment
        return call.set_lineno(node.lineno)


def ticker() -> Callable[[], str]:
    """The clock of one rendering: refuses once it has used MAX_SECONDS of processor time. Time in which the thread
    waits for a busy machine does not count."""
    deadline = time.thread_time() + MAX_SECONDS

    def tick() -> str:
        if time.thread_time() > deadline:
            raise SecurityError(f"more than {MAX_SECONDS} seconds")
        return ""

    return tick


def _add_ticks(tree: nodes.Template, environment: Sandbox) -> None:
    bodies = [loop.body for loop in tree.find_all(nodes.For)] + [macro.body for macro in tree.find_all(nodes.Macro)]
    for body in bodies:
        call = nodes.Call(nodes.Name("__tick", "load"), [], [], None, None)
        body.insert(0, nodes.Output([call]).set_lineno(1).set_environment(environment))


def check_chars(num: int) -> None:
    """Refuses a string of so many characters."""
    if num > MAX_CHARS:
        raise SecurityError(f"more than {MAX_CHARS} characters")


def _check_size(num: int, kind: object) -> None:
    if isinstance(kind, str):
        check_chars(num)
    elif num > MAX_ITEMS:
        raise SecurityError(f"a list of more than {MAX_ITEMS} elements")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result is bounded. Those that can make much of little check before they begin."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, str | list):
            _check_size(len(result), result)
        return result

    return run


def _join_bounded(separator: str, parts: list[str]) -> str:
    check_chars(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _join(value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = (item[attribute] for item in value) if attribute is not None else value
    return _join_bounded(d, [str(item) for item in items])


def _replace(value: object, old: str, new: str, count: int | None = -1) -> str:
    text, most = str(value), -1 if count is None else count
    num = text.count(old) if most < 0 else min(text.count(old), most)
    check_chars(len(text) + num * max(0, len(new) - len(old)))
    return text.replace(old, new, most)


def _sum(value: Iterable[Any], attribute: str | None = None, start: float = 0) -> Any:
    items = [item[attribute] for item in value] if attribute is not None else list(value)
    if not all(isinstance(item, int | float) for item in (*items, start)):
        raise SecurityError("sum is for numbers only")
    return sum(items, start)


def _to_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the template function of that name in `transformers`."""
    width = min(indent, 8) if indent else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=width, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise InvalidRequest(unquote(message), param="messages")


def _now(form: str) -> str:
    if not re.fullmatch(r"(?:%[-A-Za-z%][A-Za-z]?|[^%]){0,64}", form):
        raise SecurityError("a date format of more than 64 parts, or with widths")
    return datetime.now().strftime(form)
