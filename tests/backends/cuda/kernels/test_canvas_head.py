"""The head of random canvases equals the sampler and the soft embeddings of plain torch."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels import canvas_head
from quicksilver.backends.cuda.kernels.canvas_head import NUM_RESULTS, CanvasDraws, propose_canvas, soft_embeddings
from quicksilver.diffusion.sample import SampleRows, propose_with_samples
from tests.support.kernel_checks import expect_close, here

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CAP, ROWS, DIM = 30.0, 5, 32


@pytest.mark.parametrize("vocab_size", [97, 300])
def test_proposals_and_soft_embeddings_equal_plain_torch(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One and several tiles of the vocabulary, greedy and sampled rows, a banned token, a row of NaN."""
    monkeypatch.setattr(canvas_head, "BLOCK_V", 64)
    monkeypatch.setattr(canvas_head, "_VOCAB_CHUNK", 128)
    torch.manual_seed(vocab_size)
    place = here()
    raw = place.normal(ROWS, vocab_size) * 8
    raw[2, int(raw[2].argmax())] = -torch.inf
    step_temperature = torch.tensor([0.8, 0.5, 0.4, 0.7, 0.6], device=place.device)
    temperature = torch.tensor([0.0, 1.0, 0.9, 2.0, 1.0], device=place.device)
    seeds, positions = torch.arange(ROWS, device=place.device) * 7, torch.arange(ROWS, device=place.device) + 50
    steps = torch.arange(ROWS, device=place.device) % 3
    table, ones = place.normal(vocab_size, DIM), torch.ones(ROWS, device=place.device)
    banned = raw.isneginf()
    logits = ((raw.float() / CAP).tanh() * CAP / step_temperature[:, None]).masked_fill(banned, -torch.inf)
    rows = SampleRows(temperature, ones, ones * 0, ones.long() * 0, seeds, positions, steps)
    wanted = propose_with_samples(logits, rows)
    probability = logits.to(place.dtype).float().softmax(-1).to(place.dtype).float()
    raw[4, 9] = torch.nan
    results = torch.zeros(NUM_RESULTS, ROWS, dtype=torch.int32, device=place.device)
    draws = CanvasDraws(step_temperature, temperature, seeds, positions, steps)
    found = propose_canvas(raw, CAP, draws, results)
    floats = results.view(torch.float32)
    assert results[0, :4].tolist() == wanted.token_ids[:4].tolist()
    assert wanted.sampled_ids is not None
    assert results[4, :4].tolist() == wanted.sampled_ids[:4].tolist()
    assert results[3].tolist() == [1, 1, 1, 1, 0]
    torch.testing.assert_close(floats[1, :4], wanted.confidence[:4], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(floats[2, :4], wanted.entropy[:4], rtol=1e-3, atol=1e-4)
    soft = soft_embeddings(found, table, torch.tensor([2.0], device=place.device, dtype=place.dtype))
    expect_close(soft[:4], 2 * (probability @ table.float())[:4], place.tolerance)
