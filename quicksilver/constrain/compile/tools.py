"""Compiles tools and a tool choice to a grammar for `text? call*`.

A call is `{"name": ..., "arguments": ...}` between tags, with arguments that match the schema of the tool. A strict
tool whose schema cannot be guaranteed is refused; for others the finished output is validated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quicksilver.constrain.compile.lark_text import TEXT, quoted, tag, thinking_rules, until
from quicksilver.constrain.compile.response_format import SEPARATORS, Grammar, tags_of, write_body, write_schema
from quicksilver.constrain.compile.rewrite.vocabulary import Json
from quicksilver.constrain.compile.trial_compile import trial_compile
from quicksilver.constrain.source import FormatKind, Policy, ToolCallFormat, ToolChoice, ToolSignature
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar

NO_ARGUMENTS: Json = {"type": "object", "additionalProperties": False}
MAX_TOOLS = 128
MAX_CALLS = 64


def compile_tools(plan: ToolCallFormat) -> ConstraintSpec:
    """The constraint under which every call names one of the tools and has arguments for its schema."""
    require_consistent_tools(plan)
    parts = _Parts()
    rules = [start_rule(plan, parts), *call_rules(plan, parts), TEXT]
    if plan.thinking is not None:
        rules += thinking_rules(plan.thinking)
    grammars: list[Grammar] = [{"lark_grammar": "\n".join(rules)}, *parts.grammars]
    marks = (plan.tags.open, plan.tags.close, *tags_of(plan.thinking))
    special_ids = [mark for mark in marks if isinstance(mark, int)]
    named = "pattern" if plan.answer is not None and plan.answer.kind is FormatKind.REGEX else "grammar"
    return trial_compile(grammars, named, special_ids=special_ids, needs_validation=parts.needs_validation)


@dataclass(slots=True)
class _Parts:
    """Grammars to which the rules refer by name."""

    grammars: list[Grammar] = field(default_factory=list)
    needs_validation: bool = False

    def add(self, name: str, body: Grammar, needs_validation: bool) -> str:
        self.grammars.append({"name": name, **body})
        self.needs_validation |= needs_validation
        return f"@{name}"


def require_consistent_tools(plan: ToolCallFormat) -> None:
    names = [tool.name for tool in plan.tools]
    if len(names) > MAX_TOOLS:
        raise InvalidGrammar(f"There are {len(names)} `tools` where {MAX_TOOLS} are allowed.")
    if len(set(names)) < len(names):
        raise InvalidGrammar("Two `tools` have the same name.")
    if not names and plan.choice is not ToolChoice.NONE:
        raise InvalidGrammar("There are no `tools` to choose from.")
    if plan.choice is ToolChoice.NAMED and len(names) != 1:
        raise InvalidGrammar("`tool_choice` names one tool, so exactly one must be given.")
    if not 1 <= plan.max_calls <= MAX_CALLS:
        raise InvalidGrammar(f"Between 1 and {MAX_CALLS} calls are allowed, not {plan.max_calls}.")


def start_rule(plan: ToolCallFormat, parts: _Parts) -> str:
    """The rule for the whole answer."""
    think = "" if plan.thinking is None else "think "
    if plan.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED):
        return f"start: {think}{tag(plan.tags.open)} calls"
    text = free_text(plan, parts)
    if plan.choice is ToolChoice.NONE:
        return f"start: {think}{text}"
    if plan.answer is not None:
        return f"start: {think}({text} | {tag(plan.tags.open)} calls)"
    return f"start: {think}({text} | lead calls)\n{until(plan.tags.open, 'lead')}"


def free_text(plan: ToolCallFormat, parts: _Parts) -> str:
    """Text that is not a call: of the format `answer`, or any text that does not open a call."""
    if plan.answer is not None:
        return parts.add("answer", *write_body(plan.answer))
    return "QUIET" if plan.choice is ToolChoice.NONE and isinstance(plan.tags.open, str) else "TEXT"


def call_rules(plan: ToolCallFormat, parts: _Parts) -> list[str]:
    """Rules for `calls`, after the open tag of the first call."""
    if plan.choice is ToolChoice.NONE:
        return quiet_rules(plan)
    tags = plan.tags
    more = 0 if plan.choice is ToolChoice.NAMED else plan.max_calls - 1
    close = f"{quoted(tags.padding)} {tag(tags.close)}" if tags.padding else tag(tags.close)
    again = f"{quoted(tags.between)} {tag(tags.open)}" if tags.between else tag(tags.open)
    body = f"{quoted(tags.padding)} call" if tags.padding else "call"
    calls = [call(plan, tool, i, parts) for i, tool in enumerate(plan.tools) if not ends_itself(plan, tool)]
    open_texts = [(i, tool) for i, tool in enumerate(plan.tools) if ends_itself(plan, tool)]
    ended = [f"body {close}"] * bool(calls) + [f"text{i}" for i, _ in open_texts]
    one = ended[0] if len(ended) == 1 else f"({' | '.join(ended)})"
    rules = [f"calls: {one}" + (f" ({again} {one}){{0,{more}}}" if more else "")]
    rules += [f"body: {body}", "call: " + " | ".join(calls)] if calls else []
    return [*rules, *(rule for i, tool in open_texts for rule in open_text_rules(plan, tool, i))]


def ends_itself(plan: ToolCallFormat, tool: ToolSignature) -> bool:
    """Whether only the closing tag, as text, ends the input of the tool."""
    return tool.text is not None and tool.text.value is None and isinstance(plan.tags.close, str)


def open_text_rules(plan: ToolCallFormat, tool: ToolSignature, index: int) -> list[str]:
    """A call of a tool that takes any text, with its closing tag: the text ends at the first one."""
    head = plan.tags.padding + text_head(plan, tool)
    return [f"text{index}: {quoted(head)} input{index}", until(plan.tags.close, f"input{index}")]


def quiet_rules(plan: ToolCallFormat) -> list[str]:
    mark = plan.tags.open
    return [f"QUIET: TEXT & ~OPENED\nOPENED: TEXT {quoted(mark)} TEXT"] if isinstance(mark, str) else []


def text_head(plan: ToolCallFormat, tool: ToolSignature) -> str:
    return f'{{"name"{SEPARATORS[plan.tags.layout][1]}{quoted(tool.name)}}}\n'


def call(plan: ToolCallFormat, tool: ToolSignature, index: int, parts: _Parts) -> str:
    """The JSON object of a call of one tool, or the object with its name and its input as plain text."""
    comma, colon = SEPARATORS[plan.tags.layout]
    if tool.text is not None:
        text = "TEXT" if tool.text.value is None else parts.add(f"input{index}", *write_body(tool.text))
        return f"{quoted(text_head(plan, tool))} {text}"
    policy = Policy.GUARANTEED if tool.is_strict else Policy.VALIDATED
    schema = NO_ARGUMENTS if tool.parameters is None else tool.parameters
    arguments = parts.add(f"arguments{index}", *write_schema(schema, policy, plan.tags.layout))
    head = f'{{"name"{colon}{quoted(tool.name)}{comma}"arguments"{colon}'
    return f'{quoted(head)} {arguments} "}}"'
