"""Tiling of the layer-fused kernel: warps, K ranges, ring buffer stages, shared memory.

Nothing here needs a GPU, so that the kernel can be emulated on a CPU (`tests/backends/cuda/emulated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quicksilver.backends.cuda.compile import max_shared_bytes
from quicksilver.model.config import ModelConfig

# Rows of one launch: 16 or 32.
LAYER_FUSED_ROWS = 32
# Launches per layer by bits per weight. The other kernels dequantise int4 so slowly that two launches are faster for 33
# to 64 rows, although they read all weights twice.
MAX_LAUNCHES = {16: 1, 8: 1, 4: 2}
# k-block of a warp.
BLOCK = 32
THREADS = 512
# The linears in the order of execution.
LINEARS = ("o", "gu", "dn", "qkv")
_MACRO_NAMES = dict(zip(LINEARS, ("O", "GATE_UP", "DOWN", "QKV"), strict=True))
# MMA warps that split a K range: the first of these numbers that divides every K of a model into whole k-blocks.
_MMA_WARPS = (8, 6)
# K of a range at most: the registers of the warps hold 32 rows of it.
_MAX_RANGE = 2048
# K ranges of a linear at most: each produces partial sums. A K with large prime factors would have many short ranges.
_MAX_RANGES = 8
# Bytes of the ring buffer at most, by bits per weight.
MAX_RING_BYTES = {16: 144 << 10, 8: 144 << 10, 4: 100 << 10}
# Bytes of a warp's weights per stage, by bits per weight; at least one 16-bit k-block, the format of adapters.
STAGE_BYTES = {16: 2048, 8: 2048, 4: 2560}
MAX_CTAS = 256
# Bytes of a subtile (16 outputs) of a k-block, by bits per weight; int4 includes a step and a minimum per output.
_SUBTILE_BYTES = {16: 1024, 8: 512, 4: 320}


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """The GPU properties that the kernel depends on: SMs, shared memory per CTA, compute capability."""

    num_ctas: int
    shared_bytes: int
    capability: tuple[int, int]

    @classmethod
    def of(cls, device: torch.device) -> GpuProperties:
        facts = torch.cuda.get_device_properties(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls(facts.multi_processor_count, max_shared_bytes(index), (facts.major, facts.minor))


@dataclass(frozen=True, slots=True)
class KSplit:
    """How K is split: over the CTAs of a cluster, the MMA warps of a CTA, and into ranges per linear."""

    cluster: int
    mma_warps: int
    ranges: dict[str, int]


def find_k_split(config: ModelConfig) -> KSplit | None:
    """The first split that fits; clusters of two CTAs are preferred to single CTAs, eight warps to six."""
    for cluster in (2, 1):
        for mma_warps in _MMA_WARPS:
            ranges = {at: count_ranges(k, mma_warps, cluster, at) for at, k in k_dims(config).items()}
            if all(ranges.values()):
                return KSplit(cluster, mma_warps, {at: count for at, count in ranges.items() if count})
    return None


def count_ranges(k: int, mma_warps: int, cluster: int, spec: str) -> int | None:
    """The smallest number of K ranges, a multiple of the cluster size for linears after a norm; None if K cannot be
    split this way."""
    steps = k // (mma_warps * BLOCK)
    ranges = [n for n in range(cluster, steps + 1) if steps % n == 0 and k // n <= _MAX_RANGE]
    if spec in ("gu", "qkv"):
        ranges = [n for n in ranges if n % cluster == 0]
    return ranges[0] if ranges and ranges[0] <= _MAX_RANGES and k % (mma_warps * BLOCK) == 0 else None


def k_split_of(config: ModelConfig) -> KSplit:
    found = find_k_split(config)
    assert found is not None, "is_suited"
    return found


def k_dims(config: ModelConfig) -> dict[str, int]:
    return {"o": config.q_dim, "gu": config.dim, "dn": config.ffn_dim, "qkv": config.dim}


def is_supported(config: ModelConfig) -> bool:
    return config.head_dim in (64, 128) and config.dim % 64 == 0 and find_k_split(config) is not None


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The compile-time parameters of a kernel."""

    config: ModelConfig
    num_rows: int
    rank: int
    bits: int  # per weight: 16, 8 (fp8) or 4
    has_bias: bool
    splits: int  # of attention
    gpu: GpuProperties
    attention_rows: int = 0  # rows of the attention launch, if more than num_rows
    stage_blocks: int = 1  # k-blocks of a warp per stage
    stages: int = 2  # stages of the ring buffer, each for all warps

    @property
    def k_split(self) -> KSplit:
        return k_split_of(self.config)

    @property
    def num_ctas(self) -> int:
        """A multiple of the cluster size."""
        return self.gpu.num_ctas // self.k_split.cluster * self.k_split.cluster

    @property
    def block_bytes(self) -> int:
        """Bytes of a k-block of one warp."""
        return _SUBTILE_BYTES[self.bits] * self.k_split.cluster

    @property
    def stage_bytes(self) -> int:
        return self.stage_blocks * self.block_bytes * self.k_split.mma_warps


def macros(spec: KernelSpec) -> dict[str, int]:
    """Preprocessor macros of the source."""
    config = spec.config
    k_split = spec.k_split
    found = {
        "NUM_CTAS": spec.num_ctas, "MMA_WARPS": k_split.mma_warps, "CLUSTER": k_split.cluster, "ROWS": spec.num_rows,
        "DIM": config.dim, "FFN": config.ffn_dim, "HEADS": config.num_heads, "KV_HEADS": config.num_kv_heads,
        "HEAD_DIM": config.head_dim, "RANK": spec.rank, "SPLITS": spec.splits,
        "ATTENTION_ROWS": spec.attention_rows or spec.num_rows, "HEAD_NORM": int(config.qk_norm),
        "BIAS": int(spec.has_bias), "BITS": spec.bits, "STAGES": spec.stages,
        "STAGE_BLOCKS": spec.stage_blocks,
    }  # fmt: skip
    for linear, name in _MACRO_NAMES.items():
        found[f"{name}_RANGES"] = k_split.ranges[linear]
    return found


def shared_bytes(spec: KernelSpec) -> int:
    """An upper bound of sizeof(Shared) of the source, including alignment."""
    rows, k_split, tiles = spec.num_rows, spec.k_split, _max_tiles(spec)
    part, wide = 16 * rows, 16 * k_split.cluster * max(tiles.values())
    sent = 1 if k_split.cluster == 1 else max(1 if _is_split_k(k_split, at) else count for at, count in tiles.items())
    waiting = (at for at in LINEARS if not _is_split_k(k_split, at) and k_split.ranges[at] > k_split.cluster)
    kept = max(tiles["qkv"] if spec.config.qk_norm else 1, *(tiles[at] for at in waiting), 1)
    rank_depth = -(-spec.rank // BLOCK) * BLOCK
    floats = k_split.mma_warps * k_split.cluster * rows * 20 + part * (k_split.cluster * kept + sent)
    floats += rows * max(rank_depth, 8) // 2 + (6 if spec.bits < 16 else 3) * wide
    barriers = 2 * spec.stages + 5 + len(LINEARS) * sent
    second = 32 * rank_depth * k_split.cluster * sum(tiles.values())
    return spec.stages * spec.stage_bytes + 8 * barriers + 4 * floats + second + 256


def _is_split_k(k_split: KSplit, linear: str) -> bool:
    return linear in ("o", "dn") and k_split.ranges[linear] > k_split.cluster


def _max_tiles(spec: KernelSpec) -> dict[str, int]:
    """Tiles per cluster, or per CTA group with split K, at most."""
    config, k_split = spec.config, spec.k_split
    width = config.q_dim + 2 * config.kv_dim
    outputs = {"o": config.dim, "gu": 2 * config.ffn_dim, "dn": config.dim, "qkv": width}
    sets = {
        at: spec.num_ctas // (k_split.ranges[at] if _is_split_k(k_split, at) else k_split.cluster) for at in outputs
    }
    return {at: -(-outputs[at] // (16 * k_split.cluster) // sets[at]) for at in outputs}


def with_stages(spec: KernelSpec) -> KernelSpec | None:
    """With as many stages as shared memory holds; None if that is fewer than two."""
    spec = replace(spec, stage_blocks=max(1, STAGE_BYTES[spec.bits] // spec.block_bytes))
    free_bytes = spec.gpu.shared_bytes - shared_bytes(replace(spec, stages=0))
    stages = min(MAX_RING_BYTES[spec.bits], free_bytes) // (spec.stage_bytes + 16)
    return replace(spec, stages=stages) if stages >= 2 else None


def fits(spec: KernelSpec) -> bool:
    """Whether the GPU can run this kernel."""
    has_programs = max(spec.k_split.ranges.values()) <= spec.num_ctas <= MAX_CTAS
    return spec.gpu.capability >= (9, 0) and has_programs and with_stages(spec) is not None
