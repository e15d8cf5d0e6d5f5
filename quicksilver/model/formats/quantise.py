"""Turning a Transformer's weights into few bits, in place, and choosing how.

Schemes: `int8` (weight-only), `int8-grouped` and `int8-dynamic` (activations too, CPU), `int4` (grouped). The head and
the embedding table are int8 in every scheme, since 4 bits there cost more than they save. Adapters are merged before,
or gated after.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from quicksilver.backends.cpu.support import refusal as native_refusal
from quicksilver.errors import InvalidRequest
from quicksilver.model.assemble import replace_module
from quicksilver.model.formats.packing import GROUP_LEN, quantise_int4, quantise_int8, quantise_int8_grouped
from quicksilver.model.formats.quantised import (
    DynamicInt8Linear,
    Int4Linear,
    Int8Embedding,
    Int8Linear,
    has_dynamic_kernel,
)
from quicksilver.model.transformer import Transformer

Scheme = Literal["int8", "int8-grouped", "int8-dynamic", "int4"]
EXACT = ("int8-grouped", "int8-dynamic")
"""Schemes whose products give a row the same bits in any company."""
NATIVE_GROUP_LEN = 64
"""Of int8-grouped, weights and activations alike."""

Stored = dict[str, Tensor]
"""The tensors of one quantised weight, by suffix: q, scale, zero, bias."""


def best_cpu_scheme() -> str:
    """The fastest weight format this CPU supports (docs/reference/quantisation.md)."""
    if native_refusal() is None:
        return "int8-grouped"
    return "int8-dynamic" if has_dynamic_kernel() else "float32"


def quantise_model(model: Transformer, scheme: str) -> Transformer:
    """Replace every linear, the head and the embedding table in place; the float weights are freed one by one."""
    check_scheme(scheme, model.device)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            stored = quantise_weight(module.weight, module.bias, scheme_of(name, scheme))
            replace_module(model, name, make_linear(stored, scheme_of(name, scheme)))
    q, scale = quantise_int8(model.tokens.weight)
    replace_module(model, "tokens", Int8Embedding(q, scale, model.dtype))
    mark(model, scheme)
    return model


def mark(model: Transformer, scheme: str) -> None:
    model.is_exact, model.is_native = scheme in EXACT, scheme == "int8-grouped"


def check_scheme(scheme: str, device: torch.device) -> None:
    if scheme not in get_args(Scheme):
        raise InvalidRequest(f"{scheme!r} is not one of {', '.join(get_args(Scheme))}", param="scheme")
    if scheme == "int8-dynamic" and (device.type != "cpu" or not has_dynamic_kernel()):
        raise InvalidRequest("int8-dynamic needs a CPU with AVX2 or better; use int8 here", param="scheme")
    if scheme == "int8-grouped" and (device.type != "cpu" or native_refusal() is not None):
        raise InvalidRequest(f"int8-grouped cannot run here: {native_refusal() or 'not on a GPU'}", param="scheme")


def scheme_of(name: str, scheme: str) -> str:
    return "int8" if name == "head" and scheme == "int4" else scheme


def quantise_weight(weight: Tensor, bias: Tensor | None, scheme: str) -> Stored:
    if scheme == "int4":
        if weight.shape[1] % GROUP_LEN:
            raise InvalidRequest(f"int4 wants inputs in groups of {GROUP_LEN}, this weight has {weight.shape[1]}")
        q, scale, zero = quantise_int4(weight, GROUP_LEN)
        stored = {"q": q, "scale": scale, "zero": zero}
    elif scheme == "int8-grouped":
        q, scale = quantise_int8_grouped(weight, NATIVE_GROUP_LEN)
        stored = {"q": q, "scale": scale}
    else:
        q, scale = quantise_int8(weight)
        stored = {"q": q, "scale": scale}
    return stored if bias is None else stored | {"bias": bias.detach().clone()}


def make_linear(stored: Stored, scheme: str) -> nn.Module:
    bias = stored.get("bias")
    if scheme == "int4":
        return Int4Linear(stored["q"], stored["scale"], stored["zero"], bias)
    if scheme == "int8-grouped":
        return _grouped(stored)
    kind = DynamicInt8Linear if scheme == "int8-dynamic" else Int8Linear
    return kind(stored["q"], stored["scale"], bias)


def _grouped(stored: Stored) -> nn.Module:
    # Imported here: the loops bring a compiler with them, which no other scheme needs.
    from quicksilver.backends.cpu.linear import GroupedLinear
    from quicksilver.backends.cpu.matmul import pack

    shape = (stored["q"].shape[0], stored["q"].shape[1])
    return GroupedLinear(*pack(stored["q"], stored["scale"]), stored.get("bias"), shape)
