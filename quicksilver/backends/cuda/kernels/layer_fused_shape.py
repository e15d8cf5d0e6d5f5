"""How the launch between two attentions is cut: warps, ranges of the depth, slots of the ring, shared memory.

Nothing here needs a GPU, so that the kernel can be compiled and run elsewhere (`tests/backends/cuda/emulated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quicksilver.backends.cuda.compile import most_shared
from quicksilver.model.config import ModelConfig

BETWEEN_ROWS = 32
"""The most rows of one launch; fewer go in 16."""
MOST_LAUNCHES = {16: 1, 8: 1, 4: 2}
"""For the rows of a forward, by the bits of a weight: other kernels make four bits wide so slowly that two launches are
faster, although they read all weights twice."""
BLOCK = 32
"""Of the depth, that a warp reads at once."""
THREADS = 512
KINDS = ("o", "gu", "dn", "qkv")
"""The linears, in the order in which they come."""
_NAMES = dict(zip(KINDS, ("O", "GATE_UP", "DOWN", "QKV"), strict=True))
_MULTIPLIERS = (8, 6)
"""Warps that share a depth: of those numbers the first that divides all depths of a model in whole blocks."""
_LONGEST = 2048
"""Of a range: 32 rows of so much input are in the registers of the warps."""
_MOST_RANGES = 8
"""Of a depth: each leaves sums that others add up. A depth with large prime factors would have many short ones."""
MOST_RING = {16: 144 << 10, 8: 144 << 10, 4: 100 << 10}
"""Bytes of the ring, where as many fit, by the bits of a weight."""
PIECE_BYTES = {16: 2048, 8: 2048, 4: 2560}
"""Of a warp's weights that are asked for at once: room for a block in 16 bits, as adapters are."""
MOST_PROGRAMS = 256
_PART_BYTES = {16: 1024, 8: 512, 4: 320}
"""Of 16 outputs over a block, by the bits of a weight; of four bits with a step and a least value for each output."""


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


@dataclass(frozen=True, slots=True)
class Cut:
    """How a model's depths are shared: between the two programs of a team, in ranges, and among a program's warps."""

    team: int
    multipliers: int
    ranges: dict[str, int]


def cut_for(config: ModelConfig) -> Cut | None:
    """Teams of two before programs alone, eight warps before six."""
    for team in (2, 1):
        for multipliers in _MULTIPLIERS:
            ranges = {at: cut_depth(depth, multipliers, team, at) for at, depth in depths(config).items()}
            if all(ranges.values()):
                return Cut(team, multipliers, {at: count for at, count in ranges.items() if count})
    return None


def cut_depth(depth: int, multipliers: int, team: int, kind: str) -> int | None:
    """As few ranges as can be, behind a norm as many for each of a team; None where the depth has no such cut."""
    steps = depth // (multipliers * BLOCK)
    ranges = [n for n in range(team, steps + 1) if steps % n == 0 and depth // n <= _LONGEST]
    if kind in ("gu", "qkv"):
        ranges = [n for n in ranges if n % team == 0]
    return ranges[0] if ranges and ranges[0] <= _MOST_RANGES and depth % (multipliers * BLOCK) == 0 else None


def known_cut(config: ModelConfig) -> Cut:
    found = cut_for(config)
    assert found is not None, "is_suited"
    return found


def depths(config: ModelConfig) -> dict[str, int]:
    return {"o": config.q_dim, "gu": config.dim, "dn": config.ffn_dim, "qkv": config.dim}


def is_suited(config: ModelConfig) -> bool:
    return config.head_dim in (64, 128) and config.dim % 64 == 0 and cut_for(config) is not None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is compiled for."""

    config: ModelConfig
    num_rows: int
    rank: int
    bits: int
    """Of a weight: 16, 8 (fp8) or 4."""
    has_bias: bool
    splits: int
    """Of attention."""
    chip: Chip
    attended: int = 0
    """Rows of attention, where they are more."""
    piece: int = 1
    """Blocks of a warp that are asked for at once."""
    slots: int = 2
    """Of the ring, each for a piece of all warps."""

    @property
    def cut(self) -> Cut:
        return known_cut(self.config)

    @property
    def num_programs(self) -> int:
        """Whole teams."""
        return self.chip.num_programs // self.cut.team * self.cut.team

    @property
    def block_bytes(self) -> int:
        """Of one warp."""
        return _PART_BYTES[self.bits] * self.cut.team

    @property
    def slot_bytes(self) -> int:
        return self.piece * self.block_bytes * self.cut.multipliers


def macros(kind: Kind) -> dict[str, int]:
    """The shape as the source wants it."""
    config = kind.config
    cut = kind.cut
    found = {
        "PROGRAMS": kind.num_programs, "MULTIPLIERS": cut.multipliers, "TEAM": cut.team, "ROWS": kind.num_rows,
        "DIM": config.dim, "FFN": config.ffn_dim, "HEADS": config.num_heads, "KV_HEADS": config.num_kv_heads,
        "HEAD_DIM": config.head_dim, "RANK": kind.rank, "SPLITS": kind.splits,
        "ATTENDED": kind.attended or kind.num_rows, "HEAD_NORM": int(config.qk_norm),
        "BIAS": int(kind.has_bias), "BITS": kind.bits, "SLOTS": kind.slots,
        "PIECE": kind.piece,
    }  # fmt: skip
    for linear, name in _NAMES.items():
        found[f"{name}_RANGES"] = cut.ranges[linear]
    return found


def shared_bytes(kind: Kind) -> int:
    """`Shared` of the source, and the stretch to its alignment."""
    rows, cut, tiles = kind.num_rows, kind.cut, _most_tiles(kind)
    part, wide = 16 * rows, 16 * cut.team * max(tiles.values())
    sent = 1 if cut.team == 1 else max(1 if _in_sets(cut, at) else count for at, count in tiles.items())
    waits = (at for at in KINDS if not _in_sets(cut, at) and cut.ranges[at] > cut.team)
    kept = max(tiles["qkv"] if kind.config.qk_norm else 1, *(tiles[at] for at in waits), 1)
    rank_depth = -(-kind.rank // BLOCK) * BLOCK
    floats = cut.multipliers * cut.team * rows * 20 + part * (cut.team * kept + sent)
    floats += rows * max(rank_depth, 8) // 2 + (6 if kind.bits < 16 else 3) * wide
    barriers = 2 * kind.slots + 5 + len(KINDS) * sent
    second = 32 * rank_depth * cut.team * sum(tiles.values())
    return kind.slots * kind.slot_bytes + 8 * barriers + 4 * floats + second + 256


def _in_sets(cut: Cut, linear: str) -> bool:
    return linear in ("o", "dn") and cut.ranges[linear] > cut.team


def _most_tiles(kind: Kind) -> dict[str, int]:
    """Tiles of a team, or of a set of programs, at most."""
    config, cut = kind.config, kind.cut
    width = config.q_dim + 2 * config.kv_dim
    outputs = {"o": config.dim, "gu": 2 * config.ffn_dim, "dn": config.dim, "qkv": width}
    sets = {at: kind.num_programs // (cut.ranges[at] if _in_sets(cut, at) else cut.team) for at in outputs}
    return {at: -(-outputs[at] // (16 * cut.team) // sets[at]) for at in outputs}


def with_slots(kind: Kind) -> Kind | None:
    """With as many slots as shared memory holds; None where there would be but one."""
    kind = replace(kind, piece=max(1, PIECE_BYTES[kind.bits] // kind.block_bytes))
    room = kind.chip.shared_bytes - shared_bytes(replace(kind, slots=0))
    slots = min(MOST_RING[kind.bits], room) // (kind.slot_bytes + 16)
    return replace(kind, slots=slots) if slots >= 2 else None


def fits(kind: Kind) -> bool:
    """Whether the chip can run this kind at all."""
    has_programs = max(kind.cut.ranges.values()) <= kind.num_programs <= MOST_PROGRAMS
    return kind.chip.capability >= (9, 0) and has_programs and with_slots(kind) is not None
