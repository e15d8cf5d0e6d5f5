"""Real weights: greedy text equals transformers', and `verify` gives the same text for any canvas length.

nano's canvas adapter drafts for its base without the skill adapter, so that some drafts are accepted and some are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from quicksilver.core import Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter
from quicksilver.model.files.checkpoint import load_model
from quicksilver.text.tokenizer import Tokenizer
from tests.support.saved_model import save_model
from tests.support.tiny import answers, decode_params, finish_all
from tests.support.weights import nano, smollm2

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]

PROMPTS = [
    "The capital of France is", "def reverse(text):", "Once upon a time", "2 + 2 =", "The three primary colours are",
    "import numpy as np\n", "Water boils at", "Dear Sir or Madam,", '{"name": "Ada", "age":', "In 1969, people",
    "class Stack:\n    def", "To be or not to be", "A list of fruits: apple,", "SELECT name FROM", "The opposite of",
    "Hello, my name is", "Photosynthesis is", "for i in range(10):", "Monday, Tuesday,", "The sun rises in the",
]  # fmt: skip
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, canvas = load_model(smollm2().weights), nano().canvas
    assert canvas is not None
    adapter = load_adapter(canvas)
    assert isinstance(adapter, CanvasAdapter)
    attach_canvas(model, adapter)
    return build_engine(model, "smollm2", EngineConfig(num_pages=256, max_rows=512, max_running=32))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(smollm2().weights)


@pytest.fixture(scope="module")
def greedy(engine: Engine, tokenizer: Tokenizer) -> dict[str, list[int]]:
    return run(engine, tokenizer, "ar", 1)


def run(engine: Engine, tokenizer: Tokenizer, decoder: str, canvas_len: int) -> dict[str, list[int]]:
    params = decode_params(decoder, canvas_len=canvas_len, max_new_tokens=NUM_TOKENS)
    for prompt in PROMPTS:
        engine.add(Request(prompt, tuple(tokenizer.encode(prompt)), params))
    return answers(finish_all(engine))


@pytest.fixture(scope="module")
def theirs(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.nn.Module]:
    """The same dequantised weights in transformers."""
    from transformers import AutoModelForCausalLM

    folder: Path = tmp_path_factory.mktemp("smollm2")
    save_model(engine.backend.model, folder)
    yield AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for file in folder.iterdir():
        file.unlink()


def test_greedy_text_of_twenty_prompts_equals_transformers(
    greedy: dict[str, list[int]], theirs: torch.nn.Module, tokenizer: Tokenizer
) -> None:
    """Every token is their argmax after the same text; by induction their greedy text is ours."""
    for prompt, tokens in greedy.items():
        assert len(tokens) == NUM_TOKENS
        context = tokenizer.encode(prompt)
        with torch.inference_mode():
            logits = theirs(torch.tensor([context + tokens])).logits[0]
        assert logits[len(context) - 1 : -1].argmax(-1).tolist() == tokens, prompt


@pytest.mark.parametrize("canvas_len", [4, 8, 16])
def test_verify_equals_greedy_for_any_canvas_length(
    engine: Engine, tokenizer: Tokenizer, greedy: dict[str, list[int]], canvas_len: int
) -> None:
    before = engine.stats().steps
    assert run(engine, tokenizer, "verify", canvas_len) == greedy
    num_steps = engine.stats().steps - before
    # Two forwards per round: fewer than two per token only with accepted drafts, more than two per canvas without all.
    assert 2 * NUM_TOKENS // canvas_len < num_steps < 2 * NUM_TOKENS
