"""Every dialect equals its uncached oracle, token for token, however requests are batched, cut, cached or preempted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from quicksilver.core import (
    ConstraintSpec,
    DecodeParams,
    DecoderName,
    Delta,
    FinishReason,
    Frame,
    Request,
    ResumePoint,
    ScoreRequest,
)
from quicksilver.dialect import ContextKind
from quicksilver.diffusion import reference
from quicksilver.engine.admission import in_dialect
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.errors import InvalidRequest
from tests.support.dialects import (
    DISTINCT,
    MASK_ID,
    dialect_decoders,
    dialect_engine,
    dialect_model,
    soft_embed,
    tiny_dialect,
    uncached,
)
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import answers, finish_all, generate

CASES = [(name, label) for name in DISTINCT for label in dialect_decoders(name)]


def prompt_of(num_tokens: int) -> list[int]:
    return [random.Random(num_tokens).randrange(MASK_ID) for _ in range(num_tokens)]


def oracle(name: str, prompt: list[int], params: DecodeParams) -> list[int]:
    dialect = tiny_dialect(name)
    request = in_dialect(Request("oracle", tuple(prompt), params), dialect)
    model = dialect_model(name)
    return reference.generate(uncached(model), prompt, request.params, dialect, soft_embed(model))


def lengths(name: str) -> list[int]:
    """Prompts that end with a block, one after it, and one before its end."""
    block = max(tiny_dialect(name).block_len, 4)
    return [2 * block, 2 * block + 1, 3 * block - 1, 1]


@pytest.mark.parametrize(("name", "label"), CASES)
def test_engine_equals_the_uncached_oracle(name: str, label: str) -> None:
    params = dialect_decoders(name)[label]
    engine = dialect_engine(name)
    for num_tokens in lengths(name):
        prompt = prompt_of(num_tokens)
        assert generate(engine, prompt, params) == oracle(name, prompt, params)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_request_alone_equals_it_in_any_mix_of_seven(name: str) -> None:
    mates = list(dialect_decoders(name).values())
    prompts = [prompt_of(3 + 7 * i) for i in range(7)]
    alone = [generate(dialect_engine(name), prompt, mates[i % len(mates)]) for i, prompt in enumerate(prompts)]
    engine = dialect_engine(name, EngineConfig(num_pages=128, max_rows=128))
    order = list(range(7))
    random.Random(1).shuffle(order)
    for i in order:
        engine.add(Request(str(i), tuple(prompts[i]), mates[i % len(mates)]))
    together = answers(finish_all(engine))
    assert [together[str(i)] for i in range(7)] == alone


@pytest.mark.parametrize("name", DISTINCT)
def test_chunked_prefill_equals_one_pass(name: str) -> None:
    for params in dialect_decoders(name).values():
        chunked = dialect_engine(name, EngineConfig(num_pages=64, max_rows=18))
        assert generate(chunked, prompt_of(61), params) == generate(dialect_engine(name), prompt_of(61), params)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_prefix_hit_equals_a_cold_start(name: str) -> None:
    for params in dialect_decoders(name).values():
        engine = dialect_engine(name)
        cold = generate(engine, prompt_of(50), params)
        engine.add(Request("warm", tuple(prompt_of(50)), params))
        deltas = finish_all(engine)
        assert answers(deltas)["warm"] == cold
        usage = deltas["warm"][-1].usage
        assert usage is not None
        assert usage.cached_tokens == (0 if tiny_dialect(name).context is ContextKind.FULL else 48)


@pytest.mark.parametrize("name", DISTINCT)
def test_preempted_inside_a_block_equals_not_preempted(name: str) -> None:
    prompts, num_preemptions = {str(i): prompt_of(3 + 9 * i) for i in range(6)}, 0
    for params in dialect_decoders(name).values():
        alone = {key: generate(dialect_engine(name), prompt, params) for key, prompt in prompts.items()}
        tight = dialect_engine(name, EngineConfig(num_pages=7, max_rows=96))
        for key, prompt in prompts.items():
            tight.add(Request(key, tuple(prompt), params))
        assert answers(finish_all(tight)) == alone
        assert tight.pool.num_free == 7
        num_preemptions += tight.stats().preemptions
    if tiny_dialect(name).context is not ContextKind.FULL:
        assert num_preemptions > 0


@pytest.mark.parametrize("name", [name for name in DISTINCT if tiny_dialect(name).context is not ContextKind.FULL])
def test_kv_after_a_committed_block_equals_a_recomputed_prompt(name: str) -> None:
    """Bit for bit, on a CPU: fused commits write what one pass over the text writes."""
    for params in dialect_decoders(name, max_new_tokens=36).values():
        engine = dialect_engine(name)
        answer = generate(engine, prompt_of(13), params)
        text = prompt_of(13) + answer
        fresh = dialect_engine(name)
        generate(fresh, text, replace(params, max_new_tokens=1))
        num_kept = len(text) // 16 * 16 - 16
        assert num_kept >= 32
        for ours, theirs in zip(kv(engine), kv(fresh), strict=True):
            assert torch.equal(ours[:, :num_kept], theirs[:, :num_kept])


def kv(engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in text order: a single request on an empty engine takes the pages in order."""
    cache = engine.backend.cache  # type: ignore[attr-defined]
    return cache.k, cache.v


@pytest.mark.parametrize("name", DISTINCT)
def test_a_mask_token_in_the_prompt_stays_text(name: str) -> None:
    params = next(iter(dialect_decoders(name).values()))
    prompt = prompt_of(11)
    for place in (0, 5, 10):
        masked = [*prompt[:place], MASK_ID, *prompt[place + 1 :]]
        assert generate(dialect_engine(name), masked, params) == oracle(name, masked, params)


@pytest.mark.parametrize("name", [name for name in DISTINCT if tiny_dialect(name).mask_id is not None])
def test_the_mask_token_is_never_written(name: str) -> None:
    for params in dialect_decoders(name).values():
        biased = replace(params, logit_bias={MASK_ID: 100.0})
        assert MASK_ID not in generate(dialect_engine(name), prompt_of(9), biased)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_stop_token_inside_a_block_ends_the_answer(name: str) -> None:
    for params in dialect_decoders(name).values():
        full = generate(dialect_engine(name), prompt_of(13), params)
        stop = full[5]
        engine = dialect_engine(name)
        engine.add(Request("only", tuple(prompt_of(13)), replace(params, stop_ids=(stop,))))
        deltas = finish_all(engine)["only"]
        assert answers({"only": deltas})["only"] == full[: full.index(stop)]
        assert deltas[-1].finish is FinishReason.STOP


@pytest.mark.parametrize("name", DISTINCT)
def test_any_token_limit_is_a_prefix_of_a_longer_answer(name: str) -> None:
    """Where the whole answer is one canvas, its length is part of the question."""
    if tiny_dialect(name).context is ContextKind.FULL:
        pytest.skip("the number of masks after the text changes the answer")
    for params in dialect_decoders(name).values():
        full = generate(dialect_engine(name), prompt_of(10), params)
        for limit in (1, 3, 13):
            cut = generate(dialect_engine(name), prompt_of(10), replace(params, max_new_tokens=limit))
            assert cut == full[:limit]


@pytest.mark.parametrize("name", DISTINCT)
def test_logprobs_are_those_of_the_rows_that_proposed(name: str) -> None:
    for params in dialect_decoders(name).values():
        engine = dialect_engine(name)
        engine.add(Request("only", tuple(prompt_of(9)), replace(params, logprobs=2)))
        deltas = finish_all(engine)["only"]
        found = [logprob for delta in deltas for logprob in delta.logprobs]
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert [logprob.token_id for logprob in found] == tokens
        assert all(logprob.logprob < 0 and len(logprob.top) == 2 for logprob in found)


@pytest.mark.parametrize("name", DISTINCT)
def test_frames_show_the_open_part_of_the_canvas(name: str) -> None:
    params = tiny_dialect(name).default
    engine = dialect_engine(name)
    request = Request("only", tuple(prompt_of(9)), DecodeParams(max_new_tokens=16, decoder=params), wants_frames=True)
    engine.add(request)
    frames = []
    while engine.has_work:
        frames += [event for event in engine.step() if isinstance(event, Frame)]
    assert frames
    assert all(len(frame.token_ids) == len(frame.is_decided) == len(frame.confidence) for frame in frames)
    assert any(not all(frame.is_decided) for frame in frames)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_decoder_that_the_checkpoint_was_not_trained_for_is_refused(name: str) -> None:
    engine = dialect_engine(name)
    for other in set(DecoderName) - set(tiny_dialect(name).decoders):
        decoder = replace(tiny_dialect(name).default, name=other, canvas_len=3)
        with pytest.raises(InvalidRequest, match=f"decoder {other} is not available for"):
            engine.add(Request("x", (1, 2), DecodeParams(decoder=decoder)))


@pytest.mark.parametrize("name", DISTINCT)
def test_a_request_without_a_decoder_gets_the_default_one(name: str) -> None:
    engine = dialect_engine(name)
    default = DecodeParams(max_new_tokens=9, decoder=tiny_dialect(name).default)
    assert generate(engine, prompt_of(9), DecodeParams(max_new_tokens=9)) == generate(engine, prompt_of(9), default)
    engine.warm_up()


@pytest.mark.parametrize("name", DISTINCT)
def test_only_autoregressive_checkpoints_score_text(name: str) -> None:
    engine = dialect_engine(name)
    request = ScoreRequest("score", (1, 2, 3), ((4, 5),))
    if DecoderName.AR in tiny_dialect(name).decoders:
        engine.add_score(request)
        finish_all(engine)
    else:
        with pytest.raises(InvalidRequest, match="likelihood"):
            engine.add_score(request)


@pytest.mark.parametrize("name", DISTINCT)
def test_nothing_illegal_is_committed_under_a_grammar(name: str) -> None:
    """The grammar's text is written to its end, and a limit that is too short leaves a legal beginning."""
    for params in dialect_decoders(name).values():
        for limit, seed in ((60, 0), (60, 1), (25, 0), (11, 0)):
            engine = dialect_engine(name)
            engine.constraints = lambda spec: Staircase(25)
            wanted = replace(params, max_new_tokens=limit, seed=seed, stop_ids=(STOP,))
            engine.add(Request("x", tuple(prompt_of(10)), wanted, constraint=ConstraintSpec("staircase")))
            deltas = finish_all(engine)["x"]
            tokens = answers({"x": deltas})["x"]
            assert deltas[-1].finish in (FinishReason.STOP, FinishReason.LENGTH), deltas[-1]
            assert Staircase().legal_prefix(tokens) == len(tokens) == min(limit, 25)
            assert engine.pool.num_free == 64


@pytest.mark.parametrize("name", DISTINCT)
def test_a_request_that_another_worker_continues_makes_the_same_text(name: str) -> None:
    """After any Delta: inside a block, inside a window, and between two canvases."""
    for label, params in dialect_decoders(name).items():
        request = Request("only", tuple(prompt_of(9)), replace(params, logprobs=1))
        engine = dialect_engine(name)
        engine.add(request)
        whole = finish_all(engine)["only"]
        for cut in range(1, len(whole), max(len(whole) // 3, 1)):
            tokens = tuple(token for delta in whole[:cut] for token in delta.token_ids)
            usage = whole[cut - 1].usage
            assert usage is not None
            other = dialect_engine(name)
            other.add(replace(request, resume=ResumePoint(tokens, whole[cut - 1].canvas, usage)))
            parts = [*whole[:cut], *finish_all(other)["only"]]
            assert answers({"only": parts}) == answers({"only": whole}), (label, cut)
            assert [lp for d in parts for lp in d.logprobs] == [lp for d in whole for lp in d.logprobs], (label, cut)


@pytest.mark.parametrize("name", DISTINCT)
def test_another_worker_continues_under_a_grammar(name: str) -> None:
    """With the same text, but for random canvases: their soft embeddings are lost, and the text stays legal."""
    params = replace(next(iter(dialect_decoders(name).values())), max_new_tokens=60, stop_ids=(STOP,))
    request = Request("x", tuple(prompt_of(10)), params, constraint=ConstraintSpec("staircase"))

    def run(resume: ResumePoint | None) -> list[Delta]:
        engine = dialect_engine(name)
        engine.constraints = lambda spec: Staircase(25)
        engine.add(replace(request, resume=resume))
        return finish_all(engine)["x"]

    whole = run(None)
    for cut in (1, len(whole) // 2):
        usage = whole[cut - 1].usage
        assert usage is not None
        tokens = tuple(token for delta in whole[:cut] for token in delta.token_ids)
        text = answers({"x": [*whole[:cut], *run(ResumePoint(tokens, whole[cut - 1].canvas, usage))]})["x"]
        assert Staircase().legal_prefix(text) == len(text) == 25
        if not tiny_dialect(name).noise_vocab:
            assert text == answers({"x": whole})["x"]
