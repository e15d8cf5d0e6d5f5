"""The eager backend: proposals equal the uncached oracle, logits in tiles, logprobs, bitmasks and scoring."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.core import Request, TokenConstraint
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.score import score_continuations
from quicksilver.model.attention import PagedCache
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params, tiny_model, uncached

PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9)]


def backend(logit_rows: int = 64) -> TorchBackend:
    model = tiny_model()
    cache = PagedCache.allocate(model.config, 16, 8, "cpu", torch.float32)
    return TorchBackend(model, cache, logit_rows)


def work(index: int, constraint: TokenConstraint | None = None, **changes: object) -> Work:
    """The whole prompt and a fresh canvas, in pages of its own."""
    params = decode_params("confidence", canvas_len=6, **changes)
    one = Sequence(Request(str(index), PROMPTS[index], params), make_decoder(params.decoder), constraint)
    one.pages = [3 * index, 3 * index + 1, 3 * index + 2]
    one.open_canvas()
    return Work(one, 0, len(one.tokens), one.tail)


@torch.inference_mode()
def run(works: list[Work], logit_rows: int = 64) -> list[Outcome]:
    outcomes = backend(logit_rows).run(works)
    return [outcome for outcome in outcomes if outcome is not None]


def expected(one: Work) -> torch.Tensor:
    assert one.tail is not None
    return uncached(tiny_model())(one.sequence.tokens, one.tail)


def test_proposals_equal_the_uncached_forward() -> None:
    works = [work(0), work(1), work(2)]
    for one, outcome in zip(works, run(works), strict=True):
        assert outcome.proposal.token_ids.tolist() == expected(one).argmax(-1).tolist()
        assert bool(outcome.proposal.is_finite.all())


@pytest.mark.parametrize("logit_rows", [1, 6, 7, 13])
def test_tiles_of_logits_change_nothing(logit_rows: int) -> None:
    found, wanted = run([work(0), work(1), work(2)], logit_rows), run([work(0), work(1), work(2)])
    for a, b in zip(found, wanted, strict=True):
        assert a.proposal.token_ids.tolist() == b.proposal.token_ids.tolist()
        assert a.proposal.confidence.tolist() == b.proposal.confidence.tolist()


def test_a_chunk_of_a_prompt_has_no_outcome() -> None:
    chunk = Work(work(2).sequence, 0, 4, None)
    outcomes = backend().run([chunk, work(0)])
    assert outcomes[0] is None
    assert outcomes[1] is not None


def test_logprobs_are_those_before_bias_and_only_for_requests_that_ask() -> None:
    plain, asking = run([work(0), work(1, logprobs=2, logit_bias={7: 100.0})])
    assert plain.logprobs == []
    log_p = expected(work(1)).log_softmax(-1)
    assert asking.proposal.token_ids.tolist() == [7] * 6
    assert [lp.logprob for lp in asking.logprobs] == pytest.approx(log_p[:, 7].tolist(), abs=1e-4)
    assert all(len(lp.top) == 2 for lp in asking.logprobs)


def test_a_grammar_masks_the_rows_whose_left_context_is_decided() -> None:
    (outcome,) = run([work(0, Staircase())])
    assert int(outcome.proposal.token_ids[0]) % 7 == 0


def test_targets_get_their_log_probabilities() -> None:
    params = decode_params("ar", canvas_len=1)
    scorer = score_continuations(((1, 2, 3), (4,)), max_rows=64)
    one = Sequence(Request("s", PROMPTS[0], params), scorer, pages=[0, 1])
    one.open_canvas()
    outcomes = run([Work(one, 0, len(one.tokens), one.tail), work(1)], logit_rows=2)
    assert outcomes[0].target_logprobs is not None
    predict = uncached(tiny_model())
    texts = [(PROMPTS[0], 1), ((*PROMPTS[0], 1), 2), ((*PROMPTS[0], 1, 2), 3), (PROMPTS[0], 4)]
    wanted = [float(predict(text, Tail())[0].log_softmax(-1)[token]) for text, token in texts]
    assert outcomes[0].target_logprobs.tolist() == pytest.approx(wanted, abs=1e-4)
    assert outcomes[1].target_logprobs is None
