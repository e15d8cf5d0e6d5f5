"""The sweep over partly decided canvases: legal runs, forced text, remasking, and answers from bad proposals."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.constrain.runtime.canvas_masks import decided_run, sweep
from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from quicksilver.constrain.validate import validate_output
from tests.constrain.conftest import SMOLLM2_ENDS, SMOLLM2_WIDTH, special
from tests.constrain.runtime.test_matcher import PERSON, WORDS, constrain, ids, pattern
from tests.support.small_tokenizer import VOCAB_SIZE

END = special("<|im_end|>")


def holes(text: str) -> list[int | None]:
    """A canvas from text, with `_` for holes."""
    return [None if char == "_" else ord(char) for char in text]


def test_a_legal_run_stays_and_positions_with_a_choice_stay_undecided(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "ab(c|d)e*"), holes("ab____")) == holes("ab____")


def test_forced_tokens_after_the_run_are_filled_in(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "abc(d|e)"), holes("_b__")) == holes("abc_")


def test_forced_text_longer_than_the_canvas_fills_it(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "abcdef"), holes("a__")) == holes("abc")


def test_from_the_first_illegal_token_on_everything_is_remasked(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "a[bc]d*"), holes("axd_d")) == holes("a____")


def test_tokens_after_an_undecided_position_stay_until_the_sweep_reaches_them(grammars: Grammars) -> None:
    constraint = pattern(grammars, "(a|b)(c|d)")
    assert sweep(constraint, holes("_x")) == holes("_x")
    assert sweep(constraint, holes("ax")) == holes("a_")


def test_forced_text_that_contradicts_later_tokens_remasks_them(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "ab(c|d)"), holes("_c_")) == holes("ab_")


def test_a_full_run_and_a_run_that_ends_are_left_as_they_are(grammars: Grammars) -> None:
    assert sweep(pattern(grammars, "a*"), holes("aaa")) == holes("aaa")
    assert sweep(pattern(grammars, "a*"), [ord("a"), END, None]) == [ord("a"), END, None]


def test_forced_text_without_room_for_a_completion_is_not_filled_in(grammars: Grammars) -> None:
    tight, roomy = pattern(grammars, "(a|b)c{30}"), pattern(grammars, "(a|b)c{30}")
    assert tight.closing(31) is not None
    assert sweep(tight, holes("a" + "_" * 9)) == holes("_" * 10)
    assert roomy.closing(40) is None
    assert sweep(roomy, holes("a" + "_" * 9)) == holes("a" + "c" * 9)


def test_the_decided_run() -> None:
    assert decided_run([1, 2, None, 3]) == [1, 2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_sweep_never_leaves_an_illegal_run(grammars: Grammars, data: st.DataObject) -> None:
    text = '{"name":"ab","ok":true}'
    picks = st.sampled_from([None, *ids('{}":,abtrue'), END])
    noise = data.draw(st.lists(picks, min_size=len(text), max_size=len(text)))
    is_kept = data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    canvas = [ord(char) if kept else other for char, kept, other in zip(text, is_kept, noise, strict=True)]
    constraint = constrain(grammars, PERSON)
    found = sweep(constraint, canvas)
    run = decided_run(found)
    assert constraint.legal_prefix(run) == len(run)
    assert sweep(constraint, found) == found


class Denoiser:
    """A stand-in for model and decoder: proposes a wanted text with a share of random tokens."""

    def __init__(self, wanted: list[int], noise: float, width: int, seed: int) -> None:
        self._wanted, self._noise, self._width = wanted, noise, width
        self._rng = random.Random(seed)

    def propose(self, position: int) -> int:
        if position < len(self._wanted) and self._rng.random() >= self._noise:
            return self._wanted[position]
        return self._rng.randrange(self._width)

    def scores(self, position: int) -> Any:
        scores = np.random.default_rng(self._rng.randrange(2**32)).random(self._width, dtype=np.float32)
        scores[self.propose(position)] += 5
        return scores


def denoise(
    constraint: GrammarConstraint, model: Denoiser, start: int, canvas_len: int, num_words: int
) -> tuple[list[int], int]:
    """One canvas as the algorithm of `canvas.py` has it: its allowed tokens, and the steps it took."""
    canvas: list[int | None] = [None] * canvas_len
    frontier = -1
    for step in range(1, canvas_len + 2):
        canvas = sweep(constraint, canvas)
        run = decided_run(canvas)
        if len(run) <= frontier:
            return run, step
        frontier = len(run)
        rows = np.zeros((len(run) + 1, num_words), dtype=np.int32)
        if len(run) == canvas_len or constraint.write_masks(run, rows.data) <= len(run):
            return run, step
        canvas[len(run)] = best_lawful(model.scores(start + len(run)), rows[-1])
        for i in range(len(run) + 1, canvas_len):
            if canvas[i] is None and model._rng.random() < 0.4:
                canvas[i] = model.propose(start + i)
    raise AssertionError("a canvas took more steps than it has tokens")


def best_lawful(scores: Any, row: Any) -> int:
    flags = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(scores)].astype(np.bool_)
    return int(np.where(flags, scores, -np.inf).argmax())


def answer(constraint: GrammarConstraint, model: Denoiser, room: int, num_words: int) -> list[int]:
    written: list[int] = []
    while not constraint.must_stop() and len(written) < room:
        path = constraint.closing(room - len(written))
        if path is not None:
            return written + path
        tokens = constraint.forced()[: room - len(written)]
        if not tokens:
            tokens, _ = denoise(constraint, model, len(written), min(16, room - len(written)), num_words)
            tokens = tokens[: constraint.legal_prefix(tokens)]
        constraint.advance(tokens)
        written += tokens
    return written


SCHEMAS: list[tuple[Any, Any]] = [
    (PERSON, {"name": "Ada", "ok": True}),
    ({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2}, [4, 17, 3]),
    (
        {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}]},
        {"k": "v"},
    ),
    ({"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1}, {"a": True, "b": False}),
    ({"enum": ["red", "green", "blue"]}, "green"),
]


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(("schema", "wanted"), SCHEMAS)
def test_every_answer_is_valid_however_bad_the_proposals(
    grammars: Grammars, schema: Any, wanted: Any, noise: float
) -> None:
    for seed in range(3):
        model = Denoiser(ids(json.dumps(wanted, separators=(",", ":"))), noise, VOCAB_SIZE, seed)
        written = answer(constrain(grammars, schema), model, 90, WORDS)
        assert validate_output(schema, bytes(t for t in written if t < 256).decode()) is None


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_with_a_real_vocabulary_too(smollm2: Grammars, noise: float) -> None:
    tokenizer = smollm2._tokens.tokenizer
    for schema, wanted in SCHEMAS:
        model = Denoiser(tokenizer.tokenize_str(json.dumps(wanted, separators=(",", ":"))), noise, SMOLLM2_WIDTH, 1)
        written = answer(constrain(smollm2, schema), model, 40, SMOLLM2_WIDTH // 32)
        text = tokenizer.decode_str([t for t in written if t not in SMOLLM2_ENDS])
        assert validate_output(schema, text) is None


def test_correct_proposals_need_few_steps(grammars: Grammars) -> None:
    text = '{"name":"Ada","ok":true}'
    _, steps = denoise(constrain(grammars, PERSON), Denoiser(ids(text), 0.0, VOCAB_SIZE, 0), 0, len(text), WORDS)
    assert steps < len(text) // 2
