"""Requests with adapters: a mixed batch equals each request alone, and an adapter in rows equals a merged one."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from quicksilver.adapters import AdapterRef, stacked
from quicksilver.core import Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter, merge_skill, stack_adapters
from tests.support.row_adapters import random_adapter, saved
from tests.support.tiny import answers, decode_params, finish_all, generate, tiny_engine, tiny_model

# Requests per adapter, and how they are decoded.
CASES = {
    "verify": (30, decode_params("verify", canvas_len=6, max_new_tokens=8)),
    "ar": (4, decode_params("ar", max_new_tokens=6)),
    "sampled": (4, decode_params("verify", canvas_len=4, max_new_tokens=6, temperature=0.9, seed=4)),
    "confidence": (4, decode_params("confidence", canvas_len=4, threshold=0.3, max_new_tokens=6)),
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    """Ranks that fill no tile, one adapter with pairs for canvas rows, one with embeddings of its own."""
    folder = tmp_path_factory.mktemp("adapters")
    made = (random_adapter(1, rank=4), random_adapter(2, rank=7, embedding_ids=(5, 3, 60)), random_adapter(3, rank=1))
    made[0].canvas = random_adapter(4, rank=5)
    return [saved(folder, adapter, str(i)) for i, adapter in enumerate(made)]


def prompts(count: int) -> list[tuple[int, ...]]:
    return [tuple(random.Random(i).randrange(97) for _ in range(3 + 3 * (i % 7))) for i in range(count)]


def merged_engine(ref: AdapterRef) -> Engine:
    model, adapter = copy.deepcopy(tiny_model()), load_adapter(ref.path)
    merge_skill(model, adapter)
    if adapter.canvas is not None and model.canvas is not None:
        both = stack_adapters([model.canvas, adapter.canvas])
        attach_canvas(model, CanvasAdapter([dict(layer.items()) for layer in both.layers], model.canvas.mask_embedding))  # type: ignore[operator]
    return tiny_engine(model=model)


def batched(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    return answers(finish_all(engine))


@pytest.mark.parametrize("case", CASES)
def test_adapters_mixed_equal_each_alone_and_each_merged(adapters: list[AdapterRef], case: str) -> None:
    """Every prompt with each of three adapters and without one, all together in random order."""
    count, params = CASES[case]
    requests = [
        Request(f"{choice} {i}", prompt, params, adapter=ref)
        for choice, ref in enumerate([None, *adapters])
        for i, prompt in enumerate(prompts(count))
    ]
    random.Random(1).shuffle(requests)
    together = batched(tiny_engine(EngineConfig(num_pages=256, max_rows=96)), requests)
    alone = tiny_engine()
    for request in requests:
        assert together[request.id] == generate(alone, request.prompt_ids, params, adapter=request.adapter)
    for choice, engine in enumerate([tiny_engine(), *(merged_engine(ref) for ref in adapters)]):
        merged = batched(engine, [Request(str(i), prompt, params) for i, prompt in enumerate(prompts(count))])
        assert [together[f"{choice} {i}"] for i in range(count)] == [merged[str(i)] for i in range(count)]
    texts = [[together[f"{choice} {i}"] for i in range(count)] for choice in range(4)]
    assert all(texts[i] != texts[j] for i in range(4) for j in range(i))


def test_a_stack_equals_its_adapters_merged_one_after_the_other(adapters: list[AdapterRef]) -> None:
    """The second and third adapter; the second has embeddings of its own."""
    params = CASES["verify"][1]
    model = copy.deepcopy(tiny_model())
    for ref in adapters[1:]:
        merge_skill(model, load_adapter(ref.path))
    plain, merged = tiny_engine(), tiny_engine(model=model)
    stack = stacked(adapters[1], adapters[2])
    answers_of = [generate(plain, prompt, params, adapter=stack) for prompt in prompts(6)]
    assert answers_of == [generate(merged, prompt, params) for prompt in prompts(6)]
    for ref in adapters[1:]:
        assert answers_of != [generate(plain, prompt, params, adapter=ref) for prompt in prompts(6)]


def test_verify_equals_ar_with_an_adapter(adapters: list[AdapterRef]) -> None:
    engine = tiny_engine()
    for prompt in prompts(4):
        ar, verify = (
            generate(engine, prompt, decode_params(name, canvas_len=4, max_new_tokens=16), adapter=adapters[1])
            for name in ("ar", "verify")
        )
        assert ar == verify


def test_pairs_for_canvas_rows_change_drafts_and_no_text(adapters: list[AdapterRef], tmp_path: Path) -> None:
    plain = load_adapter(adapters[0].path)
    plain.canvas = None
    without = saved(tmp_path, plain)
    texts, drafted = [], []
    for ref, name in ((without, "ar"), (without, "verify"), (adapters[0], "ar"), (adapters[0], "verify")):
        params = decode_params(name, canvas_len=4, max_new_tokens=24)
        engine = tiny_engine()
        for i, prompt in enumerate(prompts(6)):
            engine.add(Request(str(i), prompt, params, adapter=ref))
        deltas = finish_all(engine)
        texts.append(answers(deltas))
        drafted.append([usage.accepted for parts in deltas.values() if (usage := parts[-1].usage) is not None])
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert drafted[1] != drafted[3]


def test_an_adapter_that_was_trained_again_meets_no_page_of_the_old_one(tmp_path: Path) -> None:
    """The same name and path, the same prompt and tenant: only pages of the same weights are shared."""
    prompt, (_, params) = prompts(7)[6] * 2, CASES["verify"]
    engine = tiny_engine()
    cached = []
    for seed in (1, 1, 2, 0):
        ref = saved(tmp_path, random_adapter(seed)) if seed else None
        engine.add(Request("x", prompt, params, adapter=ref))
        deltas = finish_all(engine)
        usage = deltas["x"][-1].usage
        assert usage is not None
        cached.append(usage.cached_tokens)
        assert answers(deltas)["x"] == generate(tiny_engine(), prompt, params, adapter=ref)
    assert cached[0] == cached[2] == cached[3] == 0
    assert cached[1] > 0, "the same weights share pages"
