"""int8 rounding of a whole model: bounded error, and rows whose bits do not depend on the batch."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.errors import InvalidRequest
from quicksilver.model.adapters import attach_canvas, merge_skill
from quicksilver.model.families import FAMILIES
from quicksilver.model.lowrank import LowRank
from tests.model.build import SMALL, random_model, run_dense, small_config, token_ids
from tests.support.canvas_adapters import new_canvas
from tests.support.dense_attend import DenseAttend

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.quantise import quantise_embedding, quantise_linear
from tests.support.quantised import quantise_model

# Relative errors that the rounding of weights and activations may cause.
LINEAR_ERROR = 0.012
LOGIT_ERROR = 0.15


def test_a_quantised_linear_stays_close_to_its_parent() -> None:
    torch.manual_seed(0)
    parent, x = torch.nn.Linear(256, 128), torch.randn(20, 256)
    wanted = parent(x)
    found = quantise_linear(parent.weight, parent.bias)(x)
    assert (found - wanted).norm() < LINEAR_ERROR * wanted.norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_model_stays_close_to_its_parent(family: str) -> None:
    config = small_config(family, dim=128, ffn_dim=256, head_dim=32, tied_head=family != "llama")
    ids = token_ids(12)
    parent = random_model(config)
    wanted = parent.logits(run_dense(parent, ids))
    model = quantise_model(random_model(config))
    found = model.logits(run_dense(model, ids))
    assert (found - wanted).norm() < LOGIT_ERROR * wanted.norm()
    if config.moe is None:  # Experts keep their float weights.
        assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())
        assert model.weight_bytes < 0.45 * parent.weight_bytes
    assert (model.dtype, model.weight_format) == (torch.float32, "int8")


@pytest.mark.parametrize(("out_dim", "in_dim"), [(192, 576), (64, 1536), (50, 96)])
def test_a_quantised_linear_is_batch_invariant(out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(out_dim, in_dim), torch.randn(64, in_dim)
    linear = quantise_linear(weight, torch.randn(out_dim))
    whole = linear(x)
    for rows in range(1, 65):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows


def test_chunked_equals_one_pass_bit_for_bit() -> None:
    model = quantise_model(random_model(small_config(dim=128, ffn_dim=256, head_dim=32)))
    ids = token_ids(40)
    whole = run_dense(model, ids)
    for length in (1, 2, 3, 7, 16, 39):
        assert torch.equal(run_dense(model, ids[:length]), whole[:length]), length


def test_a_new_canvas_changes_no_bits_of_a_quantised_model() -> None:
    model, plain = random_model(), quantise_model(random_model())
    attach_canvas(model, new_canvas(SMALL, rank=4, max_canvas_len=8, seed=0))
    quantise_model(model)
    ids = token_ids(9)
    torch.testing.assert_close(run_dense(model, ids), run_dense(plain, ids), rtol=0, atol=0)
    with torch.inference_mode():
        masks = model.embed(ids, torch.arange(9) - 1)
    assert model.canvas is not None
    assert torch.equal(masks[1:], model.canvas.mask_embedding)


def test_the_canvas_adapter_is_rounded_too_and_stays_close() -> None:
    torch.manual_seed(0)
    adapter = new_canvas(SMALL, rank=8, max_canvas_len=8, seed=0)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    parent, model = random_model(), random_model()
    for network in (parent, model):
        attach_canvas(network, adapter)
    quantise_model(model)
    x, is_canvas = torch.randn(9, SMALL.dim), torch.arange(9) > 3
    found = []
    for network in (parent, model):
        with torch.inference_mode():
            plain = network(x, torch.arange(9), DenseAttend(1, is_causal=True))
            found.append(network(x, torch.arange(9), DenseAttend(1, is_causal=True), is_canvas))
        assert torch.equal(found[-1][:4], plain[:4])
    assert model.canvas is not None
    assert not any(isinstance(module, LowRank) for module in model.canvas.modules())
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=-1).min() > 0.98


def test_a_skill_cannot_be_merged_into_quantised_weights() -> None:
    model = quantise_model(random_model())
    with pytest.raises(InvalidRequest, match="before quantising"):
        merge_skill(model, new_canvas(SMALL, rank=4, max_canvas_len=8, seed=0))


def test_embeddings_keep_the_largest_value_of_each_row() -> None:
    table = torch.randn(11, 40) * torch.logspace(-3, 3, 11)[:, None]
    found = quantise_embedding(table)(torch.arange(11))
    torch.testing.assert_close(found.abs().amax(1), table.abs().amax(1))
    assert ((found - table).abs() <= 0.5001 * table.abs().amax(1, keepdim=True) / 127).all()
