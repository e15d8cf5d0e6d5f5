"""A random layer for the layer-fused kernel: weights, buffers as in a forward, and the reference in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import quantise_to_words
from quicksilver.backends.cuda.kernels.layer_fused import (
    LayerFusedArguments,
    LayerFusedBuffers,
    LayerFusedWeights,
    LayerFusedWorkspace,
)
from quicksilver.backends.cuda.kernels.layer_fused_shape import GpuProperties, KernelSpec
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from tests.support.int4_words import dequantise_words

SPLITS = 4
KEY_BLOCK = 64


@dataclass(frozen=True)
class Case:
    rows: int = 16
    rank: int = 0
    bits: int = 16
    has_norms: bool = False
    head_dim: int = 64
    num_ctas: int = 4
    dims: tuple[int, int] = (512, 1536)
    q_dim: int = 512
    kv_heads: int | None = None
    stage_blocks: int = 1
    others: int = 0  # rows of the attention launch before these

    @property
    def spec(self) -> KernelSpec:
        gpu, attention_rows = GpuProperties(self.num_ctas, 1 << 20, (9, 0)), self.others + self.rows
        parameters = (self.rows, self.rank, self.bits, not self.has_norms, SPLITS)
        return KernelSpec(shape(self), *parameters, gpu, attention_rows, self.stage_blocks)


def shape(case: Case) -> ModelConfig:
    dim, ffn_dim = case.dims
    heads, kv_heads = case.q_dim // case.head_dim, 128 // case.head_dim if case.q_dim == 512 else 3
    kv_heads = case.kv_heads or kv_heads
    return ModelConfig(
        family="qwen3" if case.has_norms else "qwen2", num_layers=2, dim=dim, ffn_dim=ffn_dim, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=case.head_dim, vocab_size=64, context_len=64, qkv_bias=not case.has_norms,
        qk_norm=case.has_norms,
    )  # fmt: skip


def random_weight(outputs: int, depth: int, case: Case) -> SimpleNamespace:
    w = torch.randn(outputs, depth) / depth**0.5
    rest = {"bias": None, "groups": None, "bits": case.bits}
    if case.bits == 16:
        return SimpleNamespace(w=w.bfloat16(), scale=None, **rest)
    if case.bits == 4:
        words, groups, scale = quantise_to_words(w)
        return SimpleNamespace(w=words, scale=scale, **rest | {"groups": groups})
    scale = w.abs().amax(-1) / 448
    return SimpleNamespace(w=(w / scale[:, None]).to(torch.float8_e4m3fn), scale=scale, **rest)


def widened(weight: SimpleNamespace) -> Tensor:
    """The dequantised weights in float32."""
    if weight.groups is not None:
        return dequantise_words(weight.w, weight.groups, weight.scale)
    return weight.w.float() if weight.scale is None else weight.w.float() * weight.scale[:, None]


def random_layer(config: ModelConfig, case: Case) -> SimpleNamespace:
    widths = {
        "qkv": (config.q_dim + 2 * config.kv_dim, config.dim), "o": (config.dim, config.q_dim),
        "gu": (2 * config.ffn_dim, config.dim), "dn": (config.dim, config.ffn_dim),
    }  # fmt: skip
    canvas = {
        kind: SimpleNamespace(
            a=(torch.randn(case.rank, k) / k**0.5).bfloat16(), b=(torch.randn(n, case.rank) / 4).bfloat16()
        )
        for kind, (n, k) in widths.items()
        if case.rank
    }
    linears = {kind: random_weight(n, k, case) for kind, (n, k) in widths.items()}
    if not case.has_norms:
        linears["qkv"].bias = torch.randn(widths["qkv"][0]).bfloat16()

    def norm() -> SimpleNamespace:
        return SimpleNamespace(gain=(1 + torch.randn(config.dim) / 4).bfloat16(), eps=1e-6)

    def gain() -> Tensor:
        return (1 + torch.randn(config.head_dim) / 4).bfloat16()

    head_norms = SimpleNamespace(q=gain(), k=gain(), eps=1e-6) if case.has_norms else None
    return SimpleNamespace(
        attn_norm=norm(), ffn_norm=norm(), qkv=linears["qkv"], o=linears["o"], gate_up=linears["gu"],
        down=linears["dn"], canvas=canvas, head_norms=head_norms,
    )  # fmt: skip


class Bench:
    """Two random layers, buffers as in a forward, and the reference of a launch in plain torch."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(7)
        self.case, self.config = case, shape(case)
        config, rows = self.config, case.rows
        self.layers = [random_layer(config, case) for _ in range(2)]
        last = SimpleNamespace(gain=(1 + torch.randn(config.dim) / 4).bfloat16(), eps=1e-6)
        weights = SimpleNamespace(tokens=torch.zeros(1), layers=self.layers, norm=last)
        self.cache = PagedCache.allocate(config, 4, 16, "cpu", torch.bfloat16)
        angles = torch.randn(64, 2, config.head_dim // 2)
        self.packed = LayerFusedWeights(config, weights, self.cache, angles)  # type: ignore[arg-type]
        self.angles, self.shrink = angles, 1 / 64 if case.bits < 16 else 1.0
        dtype = torch.float16 if case.bits < 16 else torch.bfloat16
        slots = torch.randperm(64)[:rows].int()
        slots[3] = -1
        where = SimpleNamespace(positions=torch.randint(0, 64, (rows,)).int(), slots=slots)
        heads = (SPLITS, case.others + rows, config.num_heads)
        splits = (torch.randn(*heads, config.head_dim), torch.randn(heads), torch.rand(heads) + 0.5)
        splits = (splits[0][:, case.others :], splits[1][:, case.others :], splits[2][:, case.others :])
        splits[0][1, 2], splits[1][1, 2], splits[2][1, 2] = 0, -torch.inf, 0  # no keys
        splits[1][:, 5], splits[2][:, 5] = -torch.inf, 0  # a row without keys in any split
        splits[0][:, 5] = 0
        prefix_end, span = torch.full((rows,), SPLITS * KEY_BLOCK - 1).int(), torch.zeros(2, rows).int()
        prefix_end[7], span[1, 7] = KEY_BLOCK + 1, 3  # two key blocks, and keys of this forward
        prefix_end[8] = KEY_BLOCK * 3  # three key blocks
        left_out = ((2, 7), (3, 8))
        for at in left_out:
            splits[0][at] = splits[1][at] = splits[2][at] = torch.nan
        tiles, pages = (
            torch.tensor([[0, 0, 4], [0, 4, 9], [1, 9, rows], [0, 0, 0]]),
            torch.arange(32).view(2, 16) % 5 - 1,
        )
        tables = SimpleNamespace(
            prefix_end=prefix_end,
            span_start=span[0],
            span_end=span[1],
            tiles=tiles.int(),
            pages=pages.int(),
            num_shared=4,
        )
        self.buffers = LayerFusedBuffers(
            splits, torch.randn(rows, config.dim).bfloat16(), torch.zeros(rows, config.dim, dtype=dtype),
            torch.zeros(rows, config.q_dim + 2 * config.kv_dim, dtype=torch.bfloat16), where,  # type: ignore[arg-type]
            (torch.arange(rows) % 3 == 1).int(), tables,  # type: ignore[arg-type]
        )  # fmt: skip
        self.dtype = dtype
        self.space = LayerFusedWorkspace.allocate(config, rows, "cpu")

    def arguments(self, index: int) -> LayerFusedArguments:
        return self.packed.arguments(index, self.buffers, self.space)

    def exchanged(self, index: int, name: str) -> Tensor:
        """An exchange buffer after a launch."""
        found = self.space.exchange_of(index + 1)[name]
        if name.endswith("squares"):
            return found.view(torch.float32).view(self.case.rows, -1)
        return by_rows(found.view(self.dtype).view(self.case.rows, -1)).float() / self.shrink

    def linear(self, x: Tensor, kind: str, layer: SimpleNamespace) -> Tensor:
        weight = {"qkv": layer.qkv, "o": layer.o, "gu": layer.gate_up, "dn": layer.down}[kind]
        y = x @ widened(weight).t()
        if layer.canvas:
            pair = layer.canvas[kind]
            y = y + (x @ pair.a.float().t() * self.buffers.gate[:, None]) @ pair.b.float().t()
        return y if weight.bias is None else y + weight.bias.float()

    def layer(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """-> the stream after layer `index`, the input of down, and the stream after attention, in float32."""
        layer, stream = self.layers[index], self.buffers.stream.float()
        stream = stream + self.linear(self.attended(), "o", layer)
        gate, up = self.linear(normed(stream, layer.ffn_norm), "gu", layer).chunk(2, -1)
        ffn = torch.nn.functional.silu(gate) * up
        return stream + self.linear(ffn, "dn", layer), ffn, stream

    def attended(self) -> Tensor:
        acc, top, total = self.buffers.splits
        acc, top, total = acc.nan_to_num(), top.nan_to_num(-torch.inf, neginf=-torch.inf), total.nan_to_num()
        weight = torch.exp2(top - top.amax(0).clamp_min(-1e30))
        merged = (acc * weight[..., None]).sum(0) / (total * weight).sum(0).clamp_min(1e-9)[..., None]
        return merged.flatten(1)

    def qkv(self, stream: Tensor, index: int) -> Tensor:
        config, layer = self.config, self.layers[index]
        raw = self.linear(normed(stream, layer.attn_norm), "qkv", layer).view(len(stream), -1, config.head_dim)
        num_rope_heads = config.num_heads + config.num_kv_heads
        left, right = raw[:, :num_rope_heads].chunk(2, -1)
        if layer.head_norms is not None:
            normed_heads = raw[:, :num_rope_heads] * torch.rsqrt(
                raw[:, :num_rope_heads].square().mean(-1, keepdim=True) + 1e-6
            )
            gains = torch.cat(
                [layer.head_norms.q[None]] * config.num_heads + [layer.head_norms.k[None]] * config.num_kv_heads
            )
            left, right = (normed_heads * gains.float()).chunk(2, -1)
        cos, sin = self.angles[self.buffers.where.positions.long()].unbind(1)
        rotated = torch.cat(
            (left * cos[:, None] - right * sin[:, None], right * cos[:, None] + left * sin[:, None]), -1
        )
        return torch.cat((rotated, raw[:, num_rope_heads:]), 1)


def normed(x: Tensor, norm: SimpleNamespace) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.gain.float()


def by_rows(x: Tensor) -> Tensor:
    """Converts a linear's input from the lanes' order (k-blocks of 32, groups of 8 rows) to row order."""
    return x.view(-1, len(x) // 8, 8, 4, 8).permute(1, 2, 0, 3, 4).reshape(x.shape)
