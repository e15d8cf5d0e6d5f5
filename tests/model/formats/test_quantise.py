"""Few bits: bounded error, exact round trips, and rows that keep their bits in any company."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quicksilver.backends.cpu.support import refusal as native_refusal
from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.adapters import attach_canvas, new_canvas
from quicksilver.model.attention import DenseAttend
from quicksilver.model.config import FAMILIES, Family
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.formats.packing import (
    dequantise_int4,
    dequantise_int8,
    pack_nibbles,
    quantise_int4,
    quantise_int8,
    unpack_nibbles,
)
from quicksilver.model.formats.quantise import EXACT, best_cpu_scheme, make_linear, quantise_model, quantise_weight
from quicksilver.model.formats.quantised import has_dynamic_kernel
from quicksilver.model.formats.quantised_file import save_quantised
from quicksilver.model.lowrank import LowRank
from quicksilver.model.transformer import fewest_rows
from tests.model.build import SMALL, random_model, run_dense, small_config, token_ids

needs_fbgemm = pytest.mark.skipif(not has_dynamic_kernel(), reason="int8-dynamic needs a CPU with AVX2")
needs_loops = pytest.mark.skipif(native_refusal() is not None, reason=f"compiled loops: {native_refusal()}")
SCHEMES = [
    "int8",
    pytest.param("int8-grouped", marks=needs_loops),
    pytest.param("int8-dynamic", marks=needs_fbgemm),
    "int4",
]
LINEAR_ERROR = {"int8": 0.012, "int8-grouped": 0.012, "int8-dynamic": 0.01, "int4": 0.1}
LOGIT_ERROR = {"int8": 0.12, "int8-grouped": 0.15, "int8-dynamic": 0.12, "int4": 0.6}


def test_nibbles_pack_low_first() -> None:
    values = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert pack_nibbles(values).tolist() == [[0x21, 0x0F]]
    assert torch.equal(unpack_nibbles(pack_nibbles(values)), values.int())


def test_int8_rounds_to_half_a_step_of_each_row() -> None:
    weight = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    q, scale = quantise_int8(weight)
    error = (dequantise_int8(q, scale) - weight).abs()
    assert (error <= 0.5001 * scale[:, None]).all()
    again, scale_again = quantise_int8(dequantise_int8(q, scale))
    assert torch.equal(again, q)
    torch.testing.assert_close(scale_again, scale)


def test_int4_rounds_to_a_step_of_each_group_and_keeps_what_lies_on_the_grid() -> None:
    weight = torch.randn(8, 128)
    q, scale, zero = quantise_int4(weight, 32)
    dequantised = dequantise_int4(q, scale, zero)
    steps = (dequantised - weight).abs().unflatten(1, (-1, 32)) / scale.float()[..., None]
    assert steps.max() < 0.6
    again = quantise_int4(dequantised, 32)
    assert (unpack_nibbles(again[0]) - unpack_nibbles(q)).abs().max() <= 1
    torch.testing.assert_close(dequantise_int4(*again), dequantised, rtol=0.02, atol=0.02)
    on_grid = (torch.randint(0, 16, (8, 128)).float() - 8) * 0.25
    on_grid[:, ::32], on_grid[:, 1::32] = -2.0, 1.75
    assert torch.equal(dequantise_int4(*quantise_int4(on_grid, 32)), on_grid)


def test_rows_of_zeros_stay_zero() -> None:
    zeros = torch.zeros(4, 64)
    assert torch.equal(dequantise_int8(*quantise_int8(zeros)), zeros)
    assert dequantise_int4(*quantise_int4(zeros, 32)).abs().max() < 1e-30


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_linear_stays_close_to_its_parent(scheme: str) -> None:
    torch.manual_seed(0)
    parent, x = torch.nn.Linear(256, 128), torch.randn(20, 256)
    wanted = parent(x)
    found = make_linear(quantise_weight(parent.weight, parent.bias, scheme), scheme)(x)
    assert (found - wanted).norm() < LINEAR_ERROR[scheme] * wanted.norm()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_model_stays_close_to_its_parent(scheme: str, family: Family) -> None:
    config = small_config(family, dim=128, ffn_dim=256, head_dim=32, tied_head=family != "llama")
    ids = token_ids(12)
    parent = random_model(config)
    wanted = parent.logits(run_dense(parent, ids))
    model = quantise_model(random_model(config), scheme)
    found = model.logits(run_dense(model, ids))
    assert (found - wanted).norm() < LOGIT_ERROR[scheme] * wanted.norm()
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert model.weight_bytes < 0.45 * parent.weight_bytes
    assert model.dtype == torch.float32


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_saved_quantised_model_computes_the_same_bits(tmp_path: Path, scheme: str) -> None:
    config = small_config("qwen2", dim=128, ffn_dim=256, head_dim=32)
    save_quantised(random_model(config), tmp_path, scheme)
    found, wanted = load_model(tmp_path), quantise_model(random_model(config), scheme)
    ids = token_ids(12)
    assert torch.equal(found.logits(run_dense(found, ids)), wanted.logits(run_dense(wanted, ids)))
    assert found.is_exact == wanted.is_exact == (scheme in EXACT)
    assert found.config == config


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("out_dim", "in_dim"), [(192, 576), (64, 1536), (50, 96)])
def test_a_quantised_linear_gives_a_row_the_same_bits_in_any_company(scheme: str, out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(out_dim, in_dim), torch.randn(64, in_dim)
    linear = make_linear(quantise_weight(weight, torch.randn(out_dim), scheme), scheme)
    is_padded = out_dim == 50 and scheme not in EXACT  # no kernel for this width: expanded, so in tiles of 4
    whole = linear(x)
    for rows in range(fewest_rows(), 65, 4) if is_padded else range(1, 65):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows


@needs_fbgemm
def test_dynamic_int8_loses_next_to_nothing_on_activations_even_with_an_outlier() -> None:
    torch.manual_seed(0)
    q, scale = quantise_int8(torch.randn(64, 512))
    x = torch.randn(5, 512)
    x[:, 7] = 100.0
    wanted = torch.nn.functional.linear(x, dequantise_int8(q, scale))
    found = make_linear({"q": q, "scale": scale}, "int8-dynamic")(x)
    assert (found - wanted).norm() < 1e-3 * wanted.norm()


@needs_fbgemm
def test_dynamic_int8_keeps_rows_apart_and_bad_rows_bad() -> None:
    torch.manual_seed(0)
    linear = make_linear(quantise_weight(torch.randn(64, 96), None, "int8-dynamic"), "int8-dynamic")
    x = torch.randn(4, 96)
    x[1], x[2] = 0.0, float("nan")
    x[3] *= 1e6
    y = linear(x)
    assert torch.equal(y[0], linear(x[:1])[0])
    assert torch.equal(y[1], torch.zeros(64))
    assert y[2].isnan().all()
    torch.testing.assert_close(y[3] / 1e6, linear(x[3:] / 1e6)[0], rtol=1e-3, atol=1e-3)


@needs_fbgemm
def test_chunked_equals_one_pass_bit_for_bit_in_the_default_scheme() -> None:
    model = quantise_model(random_model(small_config(dim=128, ffn_dim=256, head_dim=32)), "int8-dynamic")
    ids = token_ids(40)
    whole = run_dense(model, ids)
    for length in (1, 2, 3, 7, 16, 39):
        assert torch.equal(run_dense(model, ids[:length]), whole[:length]), length


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_canvas_is_worn_by_a_quantised_model(scheme: str) -> None:
    model = quantise_model(random_model(), scheme)
    attach_canvas(model, new_canvas(SMALL, rank=4, max_canvas_len=8, seed=0), "gated")
    plain = quantise_model(random_model(), scheme)
    ids = token_ids(9)
    torch.testing.assert_close(run_dense(model, ids), run_dense(plain, ids), rtol=0, atol=0)
    with torch.inference_mode():
        masks = model.embed(ids, torch.arange(9) - 1)
    assert model.canvas is not None
    assert torch.equal(masks[1:], model.canvas.mask_embedding)


@needs_fbgemm
def test_a_gated_canvas_beside_integer_weights_is_held_in_int8_and_stays_close() -> None:
    torch.manual_seed(0)
    adapter = new_canvas(SMALL, rank=8, max_canvas_len=8, seed=0)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    parent, model = random_model(), quantise_model(random_model(), "int8-dynamic")
    x, is_canvas = torch.randn(9, SMALL.dim), torch.arange(9) > 3
    found = []
    for worn in (parent, model):
        attach_canvas(worn, adapter, "gated")
        with torch.inference_mode():
            plain = worn(x, torch.arange(9), DenseAttend(1, is_causal=True))
            found.append(worn(x, torch.arange(9), DenseAttend(1, is_causal=True), is_canvas))
        assert torch.equal(found[-1][:4], plain[:4])
    assert model.canvas is not None
    assert not any(isinstance(module, LowRank) for module in model.canvas.modules())
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=-1).min() > 0.98


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="fp4"):
        quantise_model(random_model(), "fp4")
    with pytest.raises(InvalidRequest, match="groups of 32"):
        quantise_model(random_model(small_config(dim=48)), "int4")


def test_the_cpus_scheme_is_one_that_runs() -> None:
    scheme = best_cpu_scheme()
    if native_refusal() is None:
        assert scheme == "int8-grouped"
    else:
        assert scheme == ("int8-dynamic" if has_dynamic_kernel() else "float32")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("layers.0.qkv.q", None, "missing"),
        ("layers.0.qkv.q", torch.zeros(128, 64), "not"),
        ("layers.0.qkv.scale", torch.zeros(127), "not"),
        ("layers.0.extra", torch.zeros(1), "does not use"),
    ],
)
def test_a_damaged_quantised_checkpoint_is_refused(
    tmp_path: Path, key: str, value: torch.Tensor | None, reason: str
) -> None:
    save_quantised(random_model(), tmp_path, "int8")
    tensors = load_file(tmp_path / "quantised.safetensors")
    tensors.pop(key, None)
    save_file(tensors if value is None else tensors | {key: value}, tmp_path / "quantised.safetensors")
    with pytest.raises(CheckpointRefused, match=reason):
        load_model(tmp_path)


def test_a_quantised_checkpoint_without_a_scheme_is_refused(tmp_path: Path) -> None:
    save_quantised(random_model(), tmp_path, "int8")
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("quicksilver_weights", "something_else"))
    with pytest.raises(CheckpointRefused, match="scheme"):
        load_model(tmp_path)
