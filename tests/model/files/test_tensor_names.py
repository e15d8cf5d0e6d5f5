"""Every parameter of every family has a name in each file format that the family has."""

from __future__ import annotations

import pytest

from quicksilver.model.families import FAMILIES
from quicksilver.model.files.tensor_names import HF_NAMES, part_names
from quicksilver.model.transformer import Transformer
from tests.model.build import small_config


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_distinct_tensors(family: str) -> None:
    model, record = Transformer(small_config(family)), FAMILIES[family]
    for table in (record.hf_names, record.gguf_names) if record.gguf_architecture else (record.hf_names,):
        parts = [part for name, _ in model.named_parameters() for part in part_names(table, name, 4)]
        assert len(parts) == len(set(parts))
        assert not any("{" in part for part in parts)


def test_fused_parameters_list_their_parts_in_row_order() -> None:
    names = part_names(HF_NAMES, "layers.12.qkv.weight")
    assert names == [f"model.layers.12.self_attn.{part}_proj.weight" for part in "qkv"]
    assert part_names(HF_NAMES, "head.weight") == ["lm_head.weight"]
