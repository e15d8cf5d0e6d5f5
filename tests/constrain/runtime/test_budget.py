"""A completion that fits into `max_tokens` is never lost, and starts exactly when it must."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.budget import NEAR, SLACK
from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.shortest import TooCostly, shortest
from quicksilver.constrain.source import FormatKind, Layout, ResponseFormat, Thinking
from quicksilver.constrain.validate import validate_output
from tests.constrain.runtime.test_matcher import constrain, ids, masks, pattern

# Opening an item commits to many more tokens.
ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"label": {"type": "string"}, "weight": {"enum": [10, 20]}},
        "required": ["label", "weight"],
        "additionalProperties": False,
    },
}
EMPTY_ROW = '{"label":"","weight":10}'


def write(constraint: GrammarConstraint, room: int, rng: random.Random) -> tuple[str, bool]:
    """A model that picks at random; the text, and whether it was closed by the budget."""
    written: list[int] = []
    while not constraint.must_stop() and len(written) < room:
        path = constraint.closing(room - len(written))
        if path is not None:
            constraint.advance(path)
            return bytes(written + path).decode(), True
        (row,) = masks(constraint, [])
        guess = [rng.choice(sorted(i for i in row if i < 128) or [min(row)])]
        taken = constraint.legal_prefix(guess)
        if guess[0] >= 256:
            break
        constraint.advance(guess[:taken])
        written += guess[:taken]
    return bytes(written).decode(), False


@pytest.mark.parametrize("room", [2, 3, 30, 40, 75, 120])
def test_text_is_complete_whenever_a_completion_fits(grammars: Grammars, room: int) -> None:
    rng = random.Random(room)
    for _ in range(4):
        text, _ = write(constrain(grammars, ROWS), room, rng)
        assert len(text) <= room
        assert validate_output(ROWS, text) is None


def test_no_completion_starts_early(grammars: Grammars) -> None:
    constraint = constrain(grammars, ROWS)
    assert constraint.closing(100) is None
    constraint.advance(ids("[" + EMPTY_ROW))
    assert constraint.closing(2) is None
    assert bytes(constraint.closing(1) or []) == b"]"


def test_a_token_after_which_no_completion_fits_is_refused(grammars: Grammars) -> None:
    constraint = constrain(grammars, ROWS)
    constraint.advance(ids("[" + EMPTY_ROW))
    room = len("," + EMPTY_ROW + "]") + SLACK
    assert constraint.closing(room) is None
    assert constraint.legal_prefix(ids(",")) == 1
    constraint.closing(room - 1)
    assert constraint.legal_prefix(ids(",")) == 0
    assert bytes(constraint.closing(room - 1) or []) == b"]"


def test_tokens_are_accepted_while_a_completion_fits(grammars: Grammars) -> None:
    constraint = constrain(grammars, {"type": "string"})
    constraint.advance(ids('"'))
    constraint.closing(4)
    assert constraint.legal_prefix(ids("abcdef")) == 3


def test_another_tokenisation_of_forced_text_leaves_room_for_the_completion(smollm2: Grammars) -> None:
    """With a real vocabulary the completion after forced text may be longer than the one that includes it."""
    closed = {"type": "object", "properties": {name: {"type": "string"} for name in "abcd"}, "required": list("abcd")}
    schema = {"type": "array", "items": {**closed, "additionalProperties": False}}
    wanted = ResponseFormat(FormatKind.JSON_SCHEMA, schema, layout=Layout.SPACED)
    for room in range(2, 70):
        constraint = smollm2.constraint(compile_response_format(wanted))
        text = smollm2._tokens.tokenizer.decode_str(write_eagerly(constraint, smollm2._tokens, room))
        assert validate_output(schema, text) is None, (room, text)


def write_eagerly(constraint: GrammarConstraint, tokens: Tokens, room: int) -> list[int]:
    """As the engine writes for a model that opens whatever it can."""
    opening = [
        i for text in (" [{", ' {"', "[{", '{"', " {", "{", "}, {", "},", ",") for i in tokens.encode(text.encode())[:1]
    ]
    written: list[int] = []
    while True:
        step = constraint.forced()[: room - len(written)]
        constraint.advance(step)
        written += step
        if constraint.must_stop() or len(written) >= room:
            return written
        path = constraint.closing(room - len(written))
        if path is not None:
            return written + path
        (allowed,) = masks(constraint, [], tokens.num_words)
        wish = [*(i for i in opening if i in allowed), *sorted(allowed)]
        taken = next((i for i in wish[:40] if constraint.legal_prefix([i]) and i not in tokens.eos_ids), None)
        if taken is not None:
            constraint.advance([taken])
            written.append(taken)


def test_a_completion_that_does_not_fit_is_not_started(grammars: Grammars) -> None:
    constraint = constrain(grammars, {"type": "object", "properties": {"name": {}}, "required": ["name"]})
    assert constraint.closing(5) is None
    assert constraint.legal_prefix(ids('{"nam')) == 5


def test_far_from_the_end_nothing_is_searched(grammars: Grammars) -> None:
    constraint = constrain(grammars, ROWS)
    constraint.advance(ids("["))
    assert constraint.closing(NEAR + 100) is None
    assert constraint.legal_prefix(ids("{")) == 1
    assert constraint._budget._unread == ids("[")


def test_without_a_known_limit_every_allowed_token_is_accepted(grammars: Grammars) -> None:
    assert constrain(grammars, ROWS).legal_prefix(ids("[" + EMPTY_ROW + ",")) == len(EMPTY_ROW) + 2


def test_text_that_is_complete_ends_where_nothing_else_fits(grammars: Grammars) -> None:
    constraint = pattern(grammars, "ab(cdefgh)?")
    constraint.advance(ids("ab"))
    assert constraint.closing(4) is None
    assert constraint.legal_prefix(ids("c")) == 0
    assert constraint.closing(4) == []


def test_failed_searches_are_not_repeated_at_every_token(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = compile_response_format(ResponseFormat(FormatKind.JSON_OBJECT, thinking=Thinking("</think>")))
    constraint = grammars.constraint(spec)
    searches: list[int] = []

    def counted(*arguments: Any) -> list[int] | None:
        searches.append(1)
        return shortest(*arguments)

    monkeypatch.setattr("quicksilver.constrain.runtime.budget.shortest", counted)
    for room in range(100, 60, -1):
        assert constraint.closing(room) is None
        assert constraint.legal_prefix(ids("x")) == 1
        constraint.advance(ids("x"))
    assert len(searches) < 10
    constraint.advance(ids('</think>{"a long enough key":[1'))
    assert bytes(constraint.closing(2) or []) == b"]}"


def test_tokens_that_begin_the_last_completion_need_no_search(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = constrain(grammars, ROWS)
    constraint.advance(ids('[{"label":"'))
    searches = []

    def counted(*given: Any) -> list[int] | None:
        searches.append(1)
        return shortest(*given)

    monkeypatch.setattr("quicksilver.constrain.runtime.budget.shortest", counted)
    room = 150
    for byte in ids('","weight":10}]'):
        assert constraint.closing(room) is None
        assert constraint.legal_prefix([byte]) == 1
        constraint.advance([byte])
        room -= 1
    assert len(searches) == 1
    assert constraint.can_stop()


def test_the_last_completion_is_followed_through_forced_tokens(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = constrain(grammars, ROWS)
    searches = []

    def counted(*given: Any) -> list[int] | None:
        searches.append(1)
        return shortest(*given)

    monkeypatch.setattr("quicksilver.constrain.runtime.budget.shortest", counted)
    room, text = 150, b'[{"label":"ab","weight":10},{"label":"c","weight":20}]'
    at = 0
    while at < len(text):
        assert constraint.closing(room - at) is None
        taken = constraint.forced() or [text[at]]
        assert constraint.legal_prefix(taken) == len(taken)
        constraint.advance(taken)
        at += len(taken)
    assert len(searches) <= 4  # at the beginning, and where an item is opened
    assert constraint.can_stop()


def test_a_grammar_with_a_slow_search_is_not_searched_again(grammars: Grammars, monkeypatch: Any) -> None:
    constraint = pattern(grammars, "[a-z]{90}")
    asked = []

    def slow(*_: object) -> None:
        asked.append(1)
        raise TooCostly

    monkeypatch.setattr("quicksilver.constrain.runtime.budget.shortest", slow)
    assert constraint.closing(10) is None
    constraint.advance(ids("a"))
    assert constraint.closing(9) is None
    assert constraint.legal_prefix(ids("bc")) == 2
    assert asked == [1]


def test_special_tokens_and_text_join_into_tokens_of_the_vocabulary(smollm2: Grammars) -> None:
    tokens: Tokens = smollm2._tokens
    path = [tokens.alphabet.byte_ids[byte] for byte in b'{"a":1}']
    joined = tokens.join([2, *path, 0])
    assert joined[0] == 2
    assert joined[-1] == 0
    assert tokens.tokenizer.decode_bytes(joined[1:-1]) == b'{"a":1}'
    assert len(joined) < len(path) + 2


def test_a_completion_with_a_real_vocabulary_fits(smollm2: Grammars) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "tags": ROWS},
        "required": ["title", "tags"],
    }
    constraint = constrain(smollm2, schema)
    begun = smollm2._tokens.tokenizer.tokenize_str('{"title":"An unfinished')
    constraint.advance(begun)
    lengths = [len(path) for room in range(1, 40) if (path := constraint.closing(room)) is not None]
    assert len(lengths) == 1
    path = constraint.closing(lengths[0])
    assert path is not None
    constraint.advance(path)
    text = smollm2._tokens.tokenizer.decode_str(begun + path)
    assert constraint.can_stop()
    assert json.loads(text) == {"title": "An unfinished", "tags": []}
