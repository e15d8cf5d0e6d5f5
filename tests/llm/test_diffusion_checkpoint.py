"""A folder of a diffusion checkpoint through the Python API: default decoder, schema, and text that names the mask."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from quicksilver.core import DecodeParams
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig
from quicksilver.llm import LLM
from quicksilver.model.families import FAMILIES
from tests.model.build import random_model, small_config
from tests.support.saved_model import save_model
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
}


FAMILY_NAMES = ["sdar", "llada2", "nemotron-labs-diffusion", "wedlm-8b", "llada", "diffusion-gemma"]


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("checkpoint") / request.param
    config = small_config(request.param, vocab_size=VOCAB_SIZE + 8)
    keys: dict[str, object] = {"block_size": 4, "mask_token_id": VOCAB_SIZE + 7, "canvas_length": 8}
    keys["text_config"] = {"vocab_size": VOCAB_SIZE + 8}
    config = replace(config, dialect=FAMILIES[request.param].dialect(keys, request.param))
    save_model(random_model(config), folder)
    (folder / "tokenizer.json").write_text(small_tokenizer().to_json())
    return LLM(str(folder), LoadConfig(device="cpu", weights="float32"), EngineConfig(num_pages=64))


def test_the_decoder_of_the_checkpoint_is_the_default(llm: LLM) -> None:
    answer = llm.generate("<|MASK|> hello", DecodeParams(max_new_tokens=9, seed=1, temperature=0.8))
    again = llm.generate("<|MASK|> hello", DecodeParams(max_new_tokens=9, seed=1, temperature=0.8))
    assert answer.token_ids == again.token_ids
    assert 0 < len(answer.token_ids) <= 9


def test_a_schema_holds(llm: LLM) -> None:
    for seed in range(3):
        params = DecodeParams(max_new_tokens=60, temperature=1.0, seed=seed)
        answer = llm.generate("give me json", params, schema=SCHEMA)
        assert isinstance(json.loads(answer.text)["ok"], bool), answer.text
