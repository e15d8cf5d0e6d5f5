"""On-policy proposals with a decoder whose answers are scripted."""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.training.answers import Answered, Asked
from quicksilver.training.proposals import EditPrompt
from quicksilver.training.propose import answer_room, proposed
from quicksilver.training.recipe import Propose
from tests.support.small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()
EDITS = [EditPrompt([i], region, region + "!", "next") for i, region in enumerate(("long region", "b", "mid"))]


class ScriptedDecoder:
    """Answers every prompt with the expected region."""

    def __init__(self) -> None:
        self.batches: list[list[Asked]] = []

    def answers(self, asked: Sequence[Asked]) -> list[Answered]:
        self.batches.append(list(asked))
        targets = [EDITS[one.prompt[0]].target for one in asked]
        return [Answered(list(TOKENIZER.encode(target)), -1.0) for target in targets]


def run(spec: Propose) -> tuple[list[int], ScriptedDecoder]:
    decoder = ScriptedDecoder()
    found = proposed(decoder, EDITS, spec, TOKENIZER)  # type: ignore[arg-type]
    assert all(proposal.is_accepted and proposal.is_shown for proposal in found)
    return [proposal.prompt[0] for proposal in found], decoder


def test_short_regions_are_answered_first_in_batches() -> None:
    order, decoder = run(Propose(batch=2))
    assert order == [1, 2, 0]
    assert [len(batch) for batch in decoder.batches] == [2, 1]


def test_a_run_ends_with_the_batch_in_which_its_time_is_over() -> None:
    order, _ = run(Propose(batch=1, max_seconds=-1.0))
    assert order == [1]


def test_an_answer_may_be_longer_than_its_region() -> None:
    assert answer_room(TOKENIZER, "abcd", 10) == 16
    _, decoder = run(Propose(spare_tokens=5))
    assert [one.max_new_tokens for one in decoder.batches[0]] == [6, 9, 21]
