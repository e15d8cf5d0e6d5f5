"""The validator of finished output, and refusals of the grammar compiler."""

from __future__ import annotations

import pytest

from quicksilver.constrain.source import FormatKind, GrammarSource, ResponseFormat
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, InvalidRequest
from quicksilver.server.generation.grammar import OutputValidator, compile_grammar

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SOURCE = ResponseFormat(FormatKind.JSON_OBJECT)


@pytest.mark.parametrize(
    ("content", "calls", "is_valid"),
    [
        ('{"n": 1}', [], True),
        ('{"n": "x"}', [], False),
        ("", [], False),
        ("", [("f", '{"n": 1}')], True),
        ("", [("f", '{"n": "x"}')], False),
        ("", [("other", "anything")], True),
        ('{"n": "x"}', [("f", '{"n": 1}')], False),
    ],
)
def test_content_and_calls_satisfy_their_schemas(content: str, calls: list[tuple[str, str]], is_valid: bool) -> None:
    validator = OutputValidator(NUMBER, {"f": NUMBER})
    assert (validator.find_fault(content, calls) is None) is is_valid


def test_a_required_call_is_required() -> None:
    validator = OutputValidator(requires_call=True)
    assert "required" in (validator.find_fault("text", []) or "")
    assert validator.find_fault("", [("f", "{}")]) is None


class Refusing:
    def __init__(self, param: str | None) -> None:
        self._param = param

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        raise InvalidGrammar("`uniqueItems` cannot be enforced", param=self._param)


@pytest.mark.parametrize(("given", "named"), [(None, "tools"), ("tools.0.function", "tools.0.function")])
async def test_a_refusal_names_the_request_field(given: str | None, named: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        await compile_grammar(SOURCE, Refusing(given), "tenant", "tools")
    assert caught.value.param == named


async def test_without_a_compiler_a_grammar_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await compile_grammar(SOURCE, None, "tenant", "response_format")
    assert (caught.value.status, caught.value.param) == (400, "response_format")
