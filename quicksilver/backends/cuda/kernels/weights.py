"""The weights of a network in the kernels' layout: views of the model's tensors, or quantised copies in fp8 or int4.

bf16 weights are not copied. `refusal` returns the reason why a model cannot run on these kernels, so that the caller
can fall back to the eager path and log it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quicksilver.backends.cuda.kernels.int4_packing import quantise_to_words
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms
from quicksilver.backends.cuda.kernels.sparse import SparseWeights, collect_sparse, free_sparse, sparse_refusal
from quicksilver.errors import InvalidRequest
from quicksilver.model.lowrank import LowRank
from quicksilver.model.transformer import Layer, Transformer

FP8_MAX = 448.0
SCHEMES = ("bfloat16", "fp8", "int4")
# Linears of a layer that a canvas adapter changes: qkv, output, gate and up, down.
NUM_LINEARS = 4


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The canvas adapter on one linear: a (rank, in), b (out, rank)."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attn_norm: Norm
    qkv: Weight
    head_norms: HeadNorms | None
    o: Weight
    ffn_norm: Norm
    gate_up: Weight
    down: Weight
    # Canvas adapter by linear (qkv, o, gu, dn); empty without an adapter.
    canvas: dict[str, LoraPair]
    # Routed experts instead of `gate_up` and `down`, which are then empty.
    sparse: SparseWeights | None = None


@dataclass(frozen=True, slots=True)
class NetworkWeights:
    tokens: Tensor
    masks: Tensor | None
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: Weight

    @property
    def num_bytes(self) -> int:
        """Bytes that a small forward without the adapter reads: every matrix once, including the head, and of routed
        experts those of one row."""
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
        sparse = sum(layer.sparse.num_bytes for layer in self.layers if layer.sparse is not None)
        return sparse + sum(matrix.num_bytes for matrix in matrices)


def refusal(model: Transformer) -> str | None:
    """Why the kernels cannot run this model; None if they can."""
    config = model.config
    if not config.fits_cuda_kernels:
        return f"the CUDA kernels do not support {config.family} yet; plain torch runs it"
    if model.tokens.weight.dtype not in (torch.bfloat16, torch.float16):
        return f"weights are {model.tokens.weight.dtype}, not 16-bit"
    if config.head_dim < 32 or config.head_dim & (config.head_dim - 1):
        return f"head size {config.head_dim} is not a power of two from 32"
    widths = (config.dim, config.ffn_dim, config.q_dim + 2 * config.kv_dim)
    if any(width % 32 for width in widths):
        return f"a width among {widths} is not a multiple of 32"
    if config.num_heads // config.num_kv_heads > 16:
        return "more than 16 query heads share a KV head"
    if config.moe is not None and (reason := sparse_refusal(config.moe)):
        return reason
    linears = [linear for layer in model.layers for linear in _linears(layer)]  # type: ignore[arg-type]
    if not all(type(linear) is nn.Linear for linear in linears):
        return "weights are quantised by another scheme"
    return _canvas_refusal(model)


def _canvas_refusal(model: Transformer) -> str | None:
    if model.canvas is None:
        return None
    pairs = [pair for layer in model.canvas.layers for pair in layer.values()]  # type: ignore[operator]
    if not all(isinstance(pair, LowRank) for pair in pairs):
        return "the canvas adapter is merged, not gated"
    if not all(len(layer) == NUM_LINEARS for layer in model.canvas.layers):  # type: ignore[arg-type]
        return "the canvas adapter does not have all linears of a layer"
    return None


def collect(model: Transformer, scheme: str = "bfloat16") -> NetworkWeights:
    """`bfloat16` keeps the model's tensors. `fp8` quantises every matrix to e4m3 with a scale per output. `int4`
    quantises the layers' matrices to four bits with a step and a minimum per 32 weights, and the head to fp8."""
    if scheme not in SCHEMES:
        raise InvalidRequest(f"{scheme!r} is not one of {', '.join(SCHEMES)}", param="weights")
    if scheme == "int4" and not model.config.fits_int4_kernels:
        raise InvalidRequest(f"{model.config.family} has no int4 kernels; use fp8", param="weights")
    canvas = model.canvas
    stack: list[Layer] = list(model.layers)  # type: ignore[arg-type]
    layers = tuple(_layer(layer, index, model, scheme) for index, layer in enumerate(stack))
    masks = None if canvas is None or not len(canvas.mask_embedding) else canvas.mask_embedding.detach()
    head = _weight(model.head, "fp8" if scheme == "int4" else scheme)
    return NetworkWeights(model.tokens.weight.detach(), masks, layers, _norm(model.norm), head)


def free_matrices(model: Transformer) -> None:
    """Drop the matrices of the layers, of which `collect` made quantised copies. Embeddings and head stay: requests
    with rare sampling options get their logits from them."""
    stack: list[Layer] = list(model.layers)  # type: ignore[arg-type]
    for layer in stack:
        if layer.is_sparse:
            free_sparse(layer.moe)
        for linear in _linears(layer):
            linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)


def _linears(layer: Layer) -> list[nn.Linear]:
    """The linears of a layer; routed experts are not among them."""
    return [layer.qkv, layer.o] if layer.is_sparse else [layer.qkv, layer.o, layer.gate_up, layer.down]


def _layer(layer: Layer, index: int, model: Transformer, scheme: str) -> LayerWeights:
    head_norms = None
    if model.config.qk_norm:
        head_norms = HeadNorms(layer.q_norm.weight.detach(), layer.k_norm.weight.detach(), layer.q_norm.eps)
    pairs = {} if model.canvas is None else dict(model.canvas.layers[index].items())  # type: ignore[operator]
    none = Weight(layer.o.weight.new_empty(0, 0))
    return LayerWeights(
        _norm(layer.attn_norm),
        _weight(layer.qkv, scheme),
        head_norms,
        _weight(layer.o, scheme),
        _norm(layer.ffn_norm),
        none if layer.is_sparse else _weight(layer.gate_up, scheme),
        none if layer.is_sparse else _weight(layer.down, scheme),
        {name: _lora_pair(pair) for name, pair in pairs.items()},
        collect_sparse(layer.moe, scheme != "bfloat16") if layer.is_sparse else None,
    )


def _norm(norm: nn.Module) -> Norm:
    return Norm(norm.weight.detach(), norm.eps)  # type: ignore[operator, arg-type]


def _weight(linear: nn.Module, scheme: str) -> Weight:
    w, bias = linear.weight.detach(), linear.bias  # type: ignore[operator]
    bias = None if bias is None else bias.detach()  # type: ignore[operator]
    if scheme == "bfloat16":
        return Weight(w, bias)  # type: ignore[arg-type]
    if scheme == "int4":
        words, groups, scale = quantise_to_words(w)  # type: ignore[arg-type]
        return Weight(words, bias, scale, groups)  # type: ignore[arg-type]
    scale = w.abs().amax(-1).float().clamp_min(1e-12) / FP8_MAX  # type: ignore[operator]
    rounded = (w.float() / scale[:, None]).to(torch.float8_e4m3fn)  # type: ignore[operator]
    return Weight(rounded, bias, scale)  # type: ignore[arg-type]


def _lora_pair(pair: LowRank) -> LoraPair:
    """Pads the rank with zeros to a power of two, at least 16, which changes no result."""
    a, b = pair.A.detach(), pair.B.detach()
    rank = max(16, 1 << (a.shape[0] - 1).bit_length())
    missing = rank - a.shape[0]
    if missing:
        a = torch.cat((a, a.new_zeros(missing, a.shape[1])))
        b = torch.cat((b, b.new_zeros(b.shape[0], missing)), dim=1)
    return LoraPair(a.contiguous(), b.contiguous())
