"""The engine equals the uncached oracle, token for token, for every decoder, however it is batched or cut."""

from __future__ import annotations

import random

import pytest

from quicksilver.core import DecodeParams, Delta, FinishReason, Request
from quicksilver.diffusion import reference
from quicksilver.engine.config import EngineConfig
from tests.support.tiny import answers, decode_params, finish_all, generate, tiny_engine, tiny_model, uncached

DECODERS = {
    "ar": decode_params("ar", max_new_tokens=40),
    "ar sampled": decode_params("ar", max_new_tokens=40, temperature=0.9, seed=5),
    "verify 4": decode_params("verify", canvas_len=4, max_new_tokens=40),
    "verify 16": decode_params("verify", canvas_len=16, max_new_tokens=41),
    "verify sampled": decode_params("verify", canvas_len=8, max_new_tokens=40, temperature=1.1, top_p=0.8, seed=3),
    "threshold": decode_params("confidence", canvas_len=8, threshold=0.3, max_new_tokens=40),
    "static": decode_params("confidence", canvas_len=8, rule="static", steps=3, max_new_tokens=40),
    "factor": decode_params("confidence", canvas_len=8, rule="factor", factor=0.9, max_new_tokens=40),
    "entropy": decode_params("confidence", canvas_len=8, rule="entropy", entropy_bound=3.0, max_new_tokens=40),
    "confidence sampled": decode_params("confidence", canvas_len=8, threshold=0.3, max_new_tokens=40, temperature=0.7),
    "edit": decode_params("edit", canvas_len=8, threshold=0.3, edit_threshold=0.3, max_new_tokens=40),
    "penalties": decode_params(
        "verify", max_new_tokens=40, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "bias and stop": decode_params("verify", max_new_tokens=40, logit_bias={7: 3.0}, stop_ids=(7,), banned_ids=(3,)),
}
PROMPTS = [[random.Random(i).randrange(97) for _ in range(3 + 11 * i)] for i in range(7)]


@pytest.fixture(params=DECODERS, ids=str)
def params(request: pytest.FixtureRequest) -> DecodeParams:
    return DECODERS[request.param]


def oracle(prompt: list[int], params: DecodeParams) -> list[int]:
    return reference.generate(uncached(tiny_model()), prompt, params)


def test_engine_equals_the_uncached_oracle(params: DecodeParams) -> None:
    for prompt in PROMPTS[:3]:
        assert generate(tiny_engine(), prompt, params) == oracle(prompt, params)


def test_a_batch_of_one_equals_any_mix_of_seven_in_any_order(params: DecodeParams) -> None:
    alone = [generate(tiny_engine(), prompt, params) for prompt in PROMPTS]
    order = list(range(7))
    random.Random(1).shuffle(order)
    others = list(DECODERS.values())
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=128))
    for i in order:
        engine.add(Request(str(i), tuple(PROMPTS[i]), params))
        engine.add(Request(f"mate {i}", tuple(PROMPTS[-i]), others[i]))
    together = answers(finish_all(engine))
    assert [together[str(i)] for i in range(7)] == alone


def test_chunked_prefill_equals_one_pass(params: DecodeParams) -> None:
    prompt = PROMPTS[6]
    chunked = tiny_engine(EngineConfig(num_pages=64, max_rows=18))
    assert generate(chunked, prompt, params) == generate(tiny_engine(), prompt, params)


def test_a_prefix_hit_equals_a_cold_start(params: DecodeParams) -> None:
    engine = tiny_engine()
    cold = generate(engine, PROMPTS[5], params)
    engine.add(Request("warm", tuple(PROMPTS[5]), params))
    deltas = finish_all(engine)
    assert answers(deltas)["warm"] == cold
    last = deltas["warm"][-1]
    assert last.usage is not None
    assert last.usage.cached_tokens == (len(PROMPTS[5]) - 1) // 16 * 16


def test_preempted_equals_not_preempted(params: DecodeParams) -> None:
    alone = {str(i): generate(tiny_engine(), prompt, params) for i, prompt in enumerate(PROMPTS)}
    tight = tiny_engine(EngineConfig(num_pages=9, max_rows=96))
    for i, prompt in enumerate(PROMPTS):
        tight.add(Request(str(i), tuple(prompt), params))
    assert answers(finish_all(tight)) == alone
    assert tight.pool.num_free == 9


def test_the_tight_pool_really_preempts() -> None:
    tight = tiny_engine(EngineConfig(num_pages=9, max_rows=96))
    for i, prompt in enumerate(PROMPTS):
        tight.add(Request(str(i), tuple(prompt), decode_params("ar", max_new_tokens=40)))
    finish_all(tight)
    assert tight.stats().preemptions > 0


@pytest.mark.parametrize("canvas_len", [4, 8, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_verify_equals_autoregression_token_for_token(canvas_len: int, temperature: float) -> None:
    for prompt in PROMPTS:
        ar = decode_params("ar", max_new_tokens=50, temperature=temperature, seed=9)
        verify = decode_params("verify", canvas_len=canvas_len, max_new_tokens=50, temperature=temperature, seed=9)
        assert generate(tiny_engine(), prompt, verify) == generate(tiny_engine(), prompt, ar)


def test_a_stop_token_ends_the_request_at_that_step_and_is_not_part_of_the_answer() -> None:
    params = decode_params("verify", max_new_tokens=40)
    full = generate(tiny_engine(), PROMPTS[2], params)
    stop = full[10]
    engine = tiny_engine()
    engine.add(Request("only", tuple(PROMPTS[2]), decode_params("verify", max_new_tokens=40, stop_ids=(stop,))))
    last: list[Delta] = finish_all(engine)["only"]
    assert answers({"only": last})["only"] == full[: full.index(stop)]
    assert last[-1].finish is FinishReason.STOP
