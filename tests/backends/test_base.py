"""The state of one request: what is left of its answer, its canvas under a limit, and its usage."""

from __future__ import annotations

from quicksilver.backends.base import Sequence
from quicksilver.core import Request
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.decoders import make_decoder
from tests.support.tiny import decode_params


def sequence(name: str = "verify", canvas_len: int = 8, max_new_tokens: int = 20) -> Sequence:
    params = decode_params(name, canvas_len=canvas_len, max_new_tokens=max_new_tokens)
    return Sequence(Request("x", (1, 2, 3), params), make_decoder(params.decoder))


def opened(one: Sequence) -> int:
    one.open_canvas()
    assert one.canvas is not None
    return len(one.canvas.token_ids)


def test_a_canvas_is_no_longer_than_the_rest_of_the_answer() -> None:
    one = sequence(max_new_tokens=5)
    assert (one.room, opened(one)) == (5, 5)


def test_a_limit_shortens_a_canvas_that_has_not_run() -> None:
    one = sequence()
    assert opened(one) == 8
    one.canvas_limit = 4
    assert opened(one) == 4
    one.canvas_limit = 0
    assert opened(one) == 4


def test_a_limit_does_not_touch_decoders_whose_text_depends_on_the_length() -> None:
    one = sequence("confidence")
    one.canvas_limit = 4
    assert opened(one) == 8


def test_a_draft_that_cost_a_forward_is_kept() -> None:
    one = sequence()
    one.canvas = Canvas.blank(7)
    one.canvas = Canvas(one.canvas.token_ids, one.canvas.is_masked, one.canvas.confidence, step=1, is_draft=True)
    one.canvas_limit = 2
    assert one.is_verifying
    assert opened(one) == 7
    assert one.tail.is_causal


def test_prefilling_means_more_uncached_tokens_than_a_round_leaves() -> None:
    one = sequence(canvas_len=8)
    one.tokens = list(range(20))
    one.kv_len = 10
    assert one.is_prefilling
    one.kv_len = 11
    assert not one.is_prefilling


def test_usage_counts_the_answer_or_the_scored_tokens() -> None:
    one = sequence()
    one.tokens += [4, 5]
    assert (one.usage().prompt_tokens, one.usage().completion_tokens) == (3, 2)
    one.scored = [-1.0] * 9
    assert one.usage().completion_tokens == 9
