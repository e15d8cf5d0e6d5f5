"""Drafts under a grammar: forced tokens are filled in, illegal ones are cut off, and no token of an answer changes."""

from __future__ import annotations

from quicksilver.backends.base import Sequence
from quicksilver.diffusion.decoder import Canvas
from quicksilver.engine.legal_draft import after_forced, legal_draft
from tests.engine.test_commit import delta, forward, sequence
from tests.support.staircase import Staircase


def drafting(committed: list[int], draft: list[int], constraint: Staircase | None = None) -> Sequence:
    """The sixth token of the toy grammar is forced to be 12."""
    one = sequence(constraint or Staircase())
    assert one.constraint is not None
    one.constraint.advance(committed)
    one.tokens += committed
    one.canvas = Canvas.predicted(draft)
    return one


def draft_of(canvas: Canvas | None) -> list[int]:
    assert canvas is not None
    assert len(canvas.token_ids) == len(canvas.is_masked) == len(canvas.confidence)
    return canvas.token_ids.tolist()


def test_a_legal_draft_is_not_copied() -> None:
    one = drafting([0, 1], [2, 3, 4, 12])
    assert legal_draft(one) is one.canvas


def test_forced_tokens_take_the_place_of_others() -> None:
    assert draft_of(legal_draft(drafting([0, 1], [2, 3, 4, 50, 6, 0]))) == [2, 3, 4, 12, 6, 0]


def test_a_draft_is_cut_before_a_token_that_is_illegal_even_so() -> None:
    assert draft_of(legal_draft(drafting([0, 1], [2, 3, 4, 50, 7, 0]))) == [2, 3, 4, 12]
    assert legal_draft(drafting([0, 1], [3, 4])) is None


def test_forced_text_that_the_remaining_tokens_do_not_allow_is_not_filled_in_twice() -> None:
    class Tight(Staircase):
        def legal_prefix(self, tokens: list[int]) -> int:  # type: ignore[override]
            return min(super().legal_prefix(tokens), 3)

    assert draft_of(legal_draft(drafting([0, 1], [2, 3, 4, 50, 6], Tight()))) == [2, 3, 4]


def test_a_draft_that_begins_with_the_committed_forced_tokens_stays() -> None:
    assert draft_of(after_forced(drafting([0, 1, 2, 3, 4], [12, 6, 0]), [12])) == [6, 0]
    assert after_forced(drafting([0, 1, 2, 3, 4], [13, 6, 0]), [12]) is None


def test_a_filled_draft_is_verified_as_any_other() -> None:
    one = sequence(Staircase())
    assert one.constraint is not None
    one.constraint.advance([0, 1])
    one.tokens += [0, 1]
    forward(one, 2, 3, 4, 50)
    assert draft_of(one.canvas) == [3, 4, 12]
    result = forward(one, 3, 4, 12, 6)
    assert delta(result).token_ids == (3, 4, 12, 6)
    assert result.num_accepted == 3
