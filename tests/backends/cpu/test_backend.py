"""The engine with the compiled CPU backend: `verify` equals `ar` in any batch, chunking or cache state."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.core import Request, ScoreRequest
from quicksilver.diffusion.sample import propose, sample_rows
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.engine.load import CPU_CANVAS_ROWS, LoadConfig, for_serving
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.transformer import Transformer
from tests.model.build import random_model, small_config
from tests.support.canvas_adapters import new_canvas
from tests.support.row_adapters import random_adapter, saved
from tests.support.tiny import answers, decode_params, finish_all, generate, tiny_engine

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.backend import CpuBackend
from tests.support.quantised import quantise_model

PROMPTS = [[random.Random(i).randrange(128) for _ in range(3 + 11 * i)] for i in range(6)]
SAMPLED = {"temperature": 0.8, "seed": 3}
CUT = {**SAMPLED, "top_p": 0.9}


@cache
def int8_model() -> Transformer:
    model = random_model(small_config("qwen3"))
    adapter = new_canvas(model.config, rank=4, max_canvas_len=16, seed=0)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    attach_canvas(model, adapter)
    return quantise_model(model).eval().requires_grad_(False)


def int8_engine(config: EngineConfig | None = None) -> Engine:
    engine = tiny_engine(config, int8_model())
    assert isinstance(engine.backend, CpuBackend)
    return engine


def test_torch_keeps_one_thread_beside_the_pool() -> None:
    """Two sets of spinning threads would compete for the processors."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        runner = int8_engine().backend
        assert torch.get_num_threads() == 1
        assert runner.network.pool is int8_engine().backend.network.pool  # type: ignore[attr-defined]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("changes", [{}, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
@pytest.mark.parametrize("canvas_len", [4, 16])
def test_verify_equals_ar(canvas_len: int, changes: dict[str, float]) -> None:
    for prompt in PROMPTS:
        ar = generate(int8_engine(), prompt, decode_params("ar", max_new_tokens=40, **changes))
        drafted = decode_params("verify", canvas_len=canvas_len, max_new_tokens=40, **changes)
        assert generate(int8_engine(), prompt, drafted) == ar


@pytest.mark.parametrize("changes", [{}, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
def test_proposals_equal_the_samplers(changes: dict[str, float]) -> None:
    torch.manual_seed(0)
    logits, rows = 4 * torch.randn(9, 700), sample_rows([decode_params("ar", **changes)], [3], [9], [0])
    found, wanted = int8_engine().backend._choose(logits, rows), propose(logits, rows).to_host()
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    torch.testing.assert_close(found.confidence, wanted.confidence, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy, wanted.entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ar", "verify", "confidence", "edit"])
def test_alone_equals_batched_and_chunked(name: str) -> None:
    params = decode_params(name, canvas_len=8, max_new_tokens=30)
    alone = [generate(int8_engine(), prompt, params) for prompt in PROMPTS]
    engine = int8_engine(EngineConfig(num_pages=64, max_rows=24))
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), tuple(prompt), params))
    together = answers(finish_all(engine))
    assert [together[str(i)] for i in range(len(PROMPTS))] == alone


def test_questions_asked_together_score_as_each_alone() -> None:
    """Questions with a common beginning are rows of one span; a question alone is a prompt of its own."""
    rng, common = random.Random(7), tuple(PROMPTS[5])
    asked = tuple((5, 9, *(rng.randrange(128) for _ in range(rng.randrange(1, 16)))) for _ in range(24))
    together = scored(ScoreRequest("s", common, asked, next_tokens=((1, 2),) * len(asked)))
    for question, found in zip(asked, together, strict=True):
        apart = scored(ScoreRequest("s", (*common, *question), ((1,), (2,))))
        assert [logprob for (logprob,) in apart] == list(found)


def scored(request: ScoreRequest) -> tuple[tuple[float, ...], ...]:
    engine = int8_engine()
    engine.add_score(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Scored):
                return event.scores.logprobs
    raise AssertionError("no scores")


@pytest.mark.parametrize("name", ["ar", "verify"])
def test_three_adapters_mixed_equal_each_alone(tmp_path: Path, name: str) -> None:
    params, config = decode_params(name, canvas_len=8, max_new_tokens=20), int8_model().config
    made = (
        random_adapter(1, 4, config, 0.2),
        random_adapter(2, 9, config, 0.2, embedding_ids=(5, 3)),
        random_adapter(3, 66, config, 0.1),
    )
    made[1].canvas = random_adapter(4, 5, config, 0.2)
    choices = [None, *(saved(tmp_path, adapter, str(i)) for i, adapter in enumerate(made))]
    engine = int8_engine(EngineConfig(num_pages=128, max_rows=48))
    for i, prompt in enumerate(PROMPTS):
        for choice, ref in enumerate(choices):
            engine.add(Request(f"{choice} {i}", tuple(prompt), params, adapter=ref))
    together = answers(finish_all(engine))
    found = [[together[f"{choice} {i}"] for i in range(len(PROMPTS))] for choice in range(len(choices))]
    for ref, texts in zip(choices, found, strict=True):
        alone = int8_engine()
        assert texts == [generate(alone, prompt, params, adapter=ref) for prompt in PROMPTS]
    assert all(texts != found[0] for texts in found[1:])


def test_served_canvases_are_short_on_a_cpu_unless_configured() -> None:
    cpu = LoadConfig(device="cpu")
    assert for_serving(EngineConfig(), cpu).canvas_rows == CPU_CANVAS_ROWS
    assert for_serving(EngineConfig(canvas_rows=40), cpu).canvas_rows == 40
    assert for_serving(EngineConfig(), LoadConfig(device="cuda")).canvas_rows == 0
