"""Canvases under load, and drafts that come along with a verification: neither changes a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.core import Request, Usage
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.config import EngineConfig
from tests.support.tiny import decode_params, finish_all, tiny_engine

PROMPTS = [(i, *range(5, 25)) for i in range(6)]


def _texts(config: EngineConfig, decoder: str) -> tuple[list[list[int]], int]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params(decoder, canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    texts = [[token for part in finished[str(i)] for token in part.token_ids] for i in range(len(PROMPTS))]
    return texts, engine.stats().drafted_tokens


def _usages(config: EngineConfig, canvas_len: int) -> list[Usage]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=canvas_len, max_new_tokens=30)))
    ends = [parts[-1].usage for parts in finish_all(engine).values()]
    return [usage for usage in ends if usage is not None]


@pytest.mark.parametrize("canvas_rows", [0, 30])
def test_rounds_are_counted_whatever_the_canvases_length(canvas_rows: int) -> None:
    """A round is two forwards; an answer may end on the first, or with a last token that nothing is drafted behind."""
    usages = _usages(EngineConfig(num_pages=128, max_rows=256, canvas_rows=canvas_rows), 12)
    assert len(usages) == len(PROMPTS)
    for usage in usages:
        assert usage.rounds <= usage.drafted <= 11 * usage.rounds
        assert abs(usage.forwards - 2 * usage.rounds) <= 1
        assert usage.completion_tokens == usage.forwards + usage.accepted


def test_canvases_shrink_under_load_and_the_text_stays() -> None:
    free, drafted = _texts(EngineConfig(num_pages=128, max_rows=128), "verify")
    bound, drafted_bound = _texts(EngineConfig(num_pages=128, max_rows=128, canvas_rows=30), "verify")
    assert bound == free
    assert drafted_bound < drafted


class DraftsAlong(TorchBackend):
    """Verifies, and hands over a draft that is right for two tokens and then wrong."""

    text: tuple[int, ...] = ()
    num_given = 0

    def run(self, works: Sequence[Work]) -> list[Outcome | None]:
        return [
            self._with_draft(work, outcome) if outcome else None
            for work, outcome in zip(works, super().run(works), strict=True)
        ]

    def _with_draft(self, work: Work, outcome: Outcome) -> Outcome:
        if work.tail is None or not work.tail.is_causal:
            return outcome
        agrees = outcome.proposal.token_ids[:-1] == torch.tensor(work.tail.token_ids)
        after = work.end + int(agrees.cumprod(0).sum()) + 1
        tokens = torch.tensor([*self.text[after : after + 2], 3, 3, 3])
        ones = torch.ones(len(tokens))
        self.num_given += 1
        return replace(outcome, draft=Proposal(tokens, ones, ones, ones.bool()))


def test_a_draft_that_comes_along_is_verified_next_and_the_text_stays() -> None:
    wanted, _ = _texts(EngineConfig(num_pages=128, max_rows=128), "ar")
    engine = tiny_engine(EngineConfig(num_pages=64))
    runner = DraftsAlong(engine.backend.model, engine.backend.cache, 64)
    runner.text = (*PROMPTS[0], *wanted[0])
    engine.backend = runner
    engine.add(Request("0", PROMPTS[0], decode_params("verify", canvas_len=6, max_new_tokens=30)))
    parts = finish_all(engine)["0"]
    assert [token for part in parts for token in part.token_ids] == wanted[0]
    assert runner.num_given > 5
    usage = parts[-1].usage
    assert usage is not None
    # The first forward only drafts, every other one ends a round; but nothing is drafted behind the last token.
    assert usage.forwards - usage.rounds in (1, 2)
    assert usage.completion_tokens == usage.forwards + usage.accepted
    assert usage.forwards < 16, "a draft that came along saves the forward that would have made it"
