"""Building a Transformer without storage and filling it."""

from __future__ import annotations

import torch

from quicksilver.model.assemble import empty_transformer, extend_context, finish, replace_module, set_parameter
from tests.model.build import random_model, run_dense, small_config, token_ids


def test_a_filled_model_computes_what_its_source_computes() -> None:
    source = random_model(small_config("qwen3", tied_head=True))
    model = empty_transformer(source.config)
    assert all(parameter.is_meta for parameter in model.parameters())
    for name, parameter in source.named_parameters():
        set_parameter(model, name, parameter.detach().clone())
    model = finish(model, "cpu")
    assert model.head.weight is model.tokens.weight
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    ids = token_ids(7)
    assert torch.equal(run_dense(model, ids), run_dense(source, ids))


def test_a_module_is_replaced_by_its_dotted_name() -> None:
    model = random_model()
    replace_module(model, "layers.1.down", torch.nn.Identity())
    assert isinstance(model.layers[1].down, torch.nn.Identity)
    assert isinstance(model.layers[0].down, torch.nn.Linear)


def test_a_longer_context_changes_positions_and_no_weights() -> None:
    model, plain = random_model(), random_model()
    extend_context(model, 4.0)
    assert model.config.context_len == 4 * plain.config.context_len
    assert not torch.equal(model.rope.inv_freq, plain.rope.inv_freq)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
