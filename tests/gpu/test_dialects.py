"""Every dialect on a GPU, in plain torch: requests finish and never write the mask token, if there is one."""

from __future__ import annotations

import copy

import pytest
import torch

from quicksilver.core import Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from tests.support.dialects import DISTINCT, MASK_ID, dialect_decoders, dialect_model
from tests.support.tiny import answers, finish_all

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("name", DISTINCT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_requests_finish(name: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(dialect_model(name)).to("cuda", dtype)
    engine = build_engine(model, name, EngineConfig(num_pages=64))
    for label, params in dialect_decoders(name).items():
        engine.add(Request(label, tuple(range(3, 24)), params))
    found = answers(finish_all(engine))
    for label in dialect_decoders(name):
        assert len(found[label]) == 22
        # DiffusionGemma has no mask token: its canvas begins with random tokens.
        assert dialect_model(name).config.dialect.mask_id is None or MASK_ID not in found[label]
