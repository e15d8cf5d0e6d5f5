"""How the launch between two attentions is cut: warps, ranges of the depth, slots of the ring, shared memory.

Nothing here needs a GPU, so that the kernel can be compiled and run elsewhere (`tests/model/emulated/test_between.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels.cuda.compile import most_shared

BETWEEN_ROWS = 32
"""The most rows of one launch; fewer go in 16."""
BLOCK = 32
"""Of the depth, that a warp reads at once."""
THREADS = 256
KINDS = ("o", "gu", "dn", "qkv")
"""The linears, in the order in which they come."""
_NAMES = dict(zip(KINDS, ("O", "GATE_UP", "DOWN", "QKV"), strict=True))
_MULTIPLIERS = (8, 6)
"""Warps that share a depth: of those numbers the first that divides all depths of a model in whole blocks."""
_LONGEST = 2048
"""Of a range: 32 rows of so much input are in the registers of the warps."""
_MOST_RANGES = 8
"""Of a depth: each leaves sums that others add up. A depth with large prime factors would have many short ones."""
MOST_SLOTS = 4
"""Of a warp's ring; as many as fit. Five, where they fit (8B in fp8), were slower."""
MOST_PROGRAMS = 256


@dataclass(frozen=True, slots=True)
class Chip:
    """What the kernel asks of a GPU: its multiprocessors, the shared memory that a program can have, its generation."""

    num_programs: int
    shared_bytes: int
    capability: tuple[int, int]

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        facts = torch.cuda.get_device_properties(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls(facts.multi_processor_count, most_shared(index), (facts.major, facts.minor))


def cut_depth(depth: int, multipliers: int) -> int | None:
    """As few ranges as can be; None where the depth has no such cut."""
    steps = depth // (multipliers * BLOCK)
    ranges = [n for n in range(1, steps + 1) if steps % n == 0 and depth // n <= _LONGEST]
    return ranges[0] if ranges and ranges[0] <= _MOST_RANGES and depth % (multipliers * BLOCK) == 0 else None


def multipliers_for(config: ModelConfig) -> int | None:
    for count in _MULTIPLIERS:
        if all(cut_depth(depth, count) is not None for depth in depths(config).values()):
            return count
    return None


def ranges_of(config: ModelConfig, depth: int) -> int:
    multipliers = multipliers_for(config)
    ranges = None if multipliers is None else cut_depth(depth, multipliers)
    assert ranges is not None, "is_suited"
    return ranges


def depths(config: ModelConfig) -> dict[str, int]:
    return {"o": config.q_dim, "gu": config.dim, "dn": config.ffn_dim, "qkv": config.dim}


def is_suited(config: ModelConfig) -> bool:
    return config.head_dim in (64, 128) and config.dim % 64 == 0 and multipliers_for(config) is not None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is compiled for."""

    config: ModelConfig
    num_rows: int
    rank: int
    is_fp8: bool
    has_bias: bool
    splits: int
    """Of attention."""
    chip: Chip
    ring: int = 2


def macros(kind: Kind) -> dict[str, int]:
    """The shape as the source wants it."""
    config = kind.config
    found = {
        "PROGRAMS": kind.chip.num_programs, "MULTIPLIERS": multipliers_for(config) or 0, "ROWS": kind.num_rows,
        "DIM": config.dim, "FFN": config.ffn_dim, "HEADS": config.num_heads, "KV_HEADS": config.num_kv_heads,
        "HEAD_DIM": config.head_dim, "RANK": kind.rank, "SPLITS": kind.splits, "HEAD_NORM": int(config.qk_norm),
        "BIAS": int(kind.has_bias), "FP8": int(kind.is_fp8), "RING": kind.ring,
    }  # fmt: skip
    for linear, name in _NAMES.items():
        found[f"{name}_RANGES"] = ranges_of(config, depths(config)[linear])
    return found


def shared_bytes(kind: Kind) -> int:
    """`Shared` of the source, and the stretch to its alignment."""
    config, rows = kind.config, kind.num_rows
    cuts = {at: ranges_of(config, depth) for at, depth in depths(config).items()}
    warps, width, tiles = multipliers_for(config) or 0, 1 if kind.is_fp8 else 2, _most_tiles(kind, cuts)
    slot = max(depth // cuts[at] // warps * 16 * width for at, depth in depths(config).items())
    waiting = max(tiles["gu"] if cuts["gu"] > 1 else 1, tiles["qkv"] if cuts["qkv"] > 1 or config.qk_norm else 1)
    rank_depth = -(-kind.rank // BLOCK) * BLOCK
    floats = 2 * warps * rows * 20 + 16 * rows * waiting + 3 * rows + rows * max(rank_depth, 8) // 2
    floats += (6 if kind.is_fp8 else 3) * 16 * max(tiles.values())
    return warps * kind.ring * (slot + 8) + 4 * floats + 32 * rank_depth * sum(tiles.values()) + 256


def _most_tiles(kind: Kind, ranges: dict[str, int]) -> dict[str, int]:
    """Tiles of a program, or of a set of programs, at most."""
    config, programs = kind.config, kind.chip.num_programs
    width = config.q_dim + 2 * config.kv_dim
    outputs = {"o": config.dim, "gu": 2 * config.ffn_dim, "dn": config.dim, "qkv": width}
    sets = {at: programs // ranges[at] if at in ("o", "dn") else programs for at in outputs}
    return {at: -(-outputs[at] // 16 // sets[at]) for at in outputs}


def with_ring(kind: Kind) -> Kind | None:
    """With as long a ring as shared memory holds; None where two slots are too many."""
    rings = (replace(kind, ring=count) for count in range(MOST_SLOTS, 1, -1))
    return next((found for found in rings if shared_bytes(found) <= kind.chip.shared_bytes), None)


def fits(kind: Kind) -> bool:
    """Whether the chip can run this kind at all."""
    most_ranges = max(ranges_of(kind.config, depth) for depth in depths(kind.config).values())
    has_programs = most_ranges <= kind.chip.num_programs <= MOST_PROGRAMS
    return kind.chip.capability >= (9, 0) and has_programs and with_ring(kind) is not None
