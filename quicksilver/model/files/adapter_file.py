"""Adapter files: safetensors with low-rank pairs in int8, int4 or fp16.

- int8: `.A.q` and `.B.q` int8, with `.scale` per rank: per row of A and per column of B.
- int4: `.A.q` and `.B.q` uint8 with two values per byte along the last dimension, low nibble first; symmetric, with
  `.scale` per group of 32 values.
- fp16: `.A` and `.B`.

Pairs for canvas rows alone have the prefix `canvas.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.files.headers import read_safetensors_header
from quicksilver.model.files.shards import open_tensors
from quicksilver.model.formats.int4 import pack_nibbles, unpack_nibbles
from quicksilver.model.lowrank import LINEARS, Adapter, CanvasAdapter, LowRank

# Values per scale in int4 files. It is part of the file format.
GROUP_LEN = 32
# Larger ranks are refused as implausible.
_MAX_RANK = 1024
_PAIR = re.compile(r"(canvas\.)?layers\.(\d{1,4})\.(qkv|o|gu|dn)\.(A|B)(\.q)?")
_OTHERS = ("mask_embedding", "embedding.ids", "embedding.rows")

# Layer, linear, and A or B.
Place = tuple[int, str, str]
Pairs = dict[Place, Tensor]


def save_adapter(path: Path | str, adapter: Adapter, metadata: Mapping[str, str], bits: int = 8) -> None:
    """Write `adapter` with 16, 8 or 4 bits per value. Mask embeddings are fp16, replaced embeddings fp32."""
    if bits not in (16, 8, 4):
        raise InvalidRequest(f"adapters have 16, 8 or 4 bits, not {bits}", param="bits")
    tensors: dict[str, Tensor] = {}
    for prefix, part in (("", adapter), ("canvas.", adapter.canvas)):
        for index, name, pair in part.low_rank() if part is not None else ():
            tensors |= _encode(f"{prefix}layers.{index}.{name}.A", pair.A.detach().float().cpu(), bits)
            tensors |= _encode(f"{prefix}layers.{index}.{name}.B", pair.B.detach().float().cpu(), bits)
    if isinstance(adapter, CanvasAdapter):
        tensors["mask_embedding"] = adapter.mask_embedding.detach().half().cpu().contiguous()
    if adapter.embedding_ids is not None and adapter.embedding_rows is not None:
        tensors["embedding.ids"] = adapter.embedding_ids.long().cpu().contiguous()
        tensors["embedding.rows"] = adapter.embedding_rows.float().cpu().contiguous()
    save_file(tensors, path, metadata={**metadata, "bits": str(bits)})


def _encode(name: str, values: Tensor, bits: int) -> dict[str, Tensor]:
    if bits == 16:
        return {name: values.half().contiguous()}
    if bits == 8:
        # One scale per rank: rows of A and columns of B.
        q, scale = _to_int8(values if name.endswith("A") else values.T)
        return {f"{name}.q": (q if name.endswith("A") else q.T).contiguous(), f"{name}.scale": scale}
    q, scale = _to_int4(values)
    return {f"{name}.q": q, f"{name}.scale": scale}


def _to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().amax(1).clamp(min=1e-30) / 127
    return (values / scale[:, None]).round().to(torch.int8), scale


def _to_int4(values: Tensor) -> tuple[Tensor, Tensor]:
    if values.shape[1] % GROUP_LEN:
        raise InvalidRequest(
            f"4-bit adapters need a rank and input sizes that are multiples of {GROUP_LEN}", param="bits"
        )
    groups = values.unflatten(1, (-1, GROUP_LEN))
    scale = (groups.abs().amax(2).clamp(min=6e-7) / 7).half()
    steps = (groups / scale.float()[..., None]).round().clamp(-8, 7) + 8
    return pack_nibbles(steps.flatten(1).to(torch.uint8)), scale


def load_adapter(path: Path | str) -> Adapter:
    """A CanvasAdapter if the file has mask embeddings, else a skill Adapter; weights are fp32 on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointRefused(f"{path.name}: no such adapter")
    header = read_safetensors_header(path)
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in header.entries}
    adapter = _assemble(tensors, path.name)
    adapter.metadata = dict(header.metadata)
    return adapter.requires_grad_(False)


def _assemble(tensors: dict[str, Tensor], file_name: str) -> Adapter:
    parts: dict[str, Pairs] = {"": {}, "canvas.": {}}
    for prefix, place, values in _decode_all(tensors, file_name):
        parts[prefix][place] = values
    layers, on_canvas = (_layers(pairs, f"{file_name}: {prefix}") for prefix, pairs in parts.items())
    masks, ids, rows = (tensors.get(name) for name in _OTHERS)
    if any(table is not None and table.dim() != 2 for table in (masks, rows)):
        raise CheckpointRefused(f"{file_name}: embeddings are not a matrix")
    adapter = Adapter(layers) if masks is None else CanvasAdapter(layers, masks.float())
    adapter.canvas = Adapter(on_canvas) if on_canvas else None
    if (ids is None) != (rows is None) or (ids is not None and rows is not None and ids.shape != rows.shape[:1]):
        raise CheckpointRefused(f"{file_name}: embedding.ids and embedding.rows do not match")
    if ids is not None and rows is not None:
        adapter.replace_embeddings(ids, rows)
    return adapter


def _layers(pairs: Pairs, where: str) -> list[dict[str, nn.Module]]:
    layers: list[dict[str, nn.Module]] = []
    for layer in range(1 + max((layer for layer, _, _ in pairs), default=-1)):
        found = {name: (pairs.get((layer, name, "A")), pairs.get((layer, name, "B"))) for name in LINEARS}
        layers.append({name: _pair(a, b, f"{where}layer {layer} {name}") for name, (a, b) in found.items()})
    return layers


def _decode_all(tensors: dict[str, Tensor], file_name: str) -> Iterator[tuple[str, Place, Tensor]]:
    """The prefix of every matrix, its place and its values."""
    for key, values in tensors.items():
        found = _PAIR.fullmatch(key)
        if found is not None:
            prefix, layer, name, side, is_quantised = found.groups()
            scale = tensors.get(f"{key[:-2]}.scale") if is_quantised else None
            yield prefix or "", (int(layer), name, side), _decode(values, scale, side, f"{file_name}: {key}")
        elif key not in _OTHERS and not _PAIR.fullmatch(key.removesuffix(".scale")):
            raise CheckpointRefused(f"{file_name}: {key} is not part of an adapter")


def _decode(values: Tensor, scale: Tensor | None, side: str, where: str) -> Tensor:
    if values.dim() != 2:
        raise CheckpointRefused(f"{where} is not a matrix")
    rank_dim = 0 if side == "A" else 1
    if scale is None and values.is_floating_point():
        return values.float()
    if scale is not None and values.dtype == torch.int8 and scale.shape == values.shape[rank_dim : rank_dim + 1]:
        return values.float() * scale.float().unsqueeze(1 - rank_dim)
    if scale is not None and values.dtype == torch.uint8 and scale.shape == _group_shape(values):
        steps = unpack_nibbles(values).unflatten(1, (-1, GROUP_LEN)).float() - 8
        return (steps * scale.float()[..., None]).flatten(1)
    raise CheckpointRefused(f"{where} is {values.dtype} {tuple(values.shape)} without matching scales")


def _group_shape(values: Tensor) -> tuple[int, int]:
    return values.shape[0], values.shape[1] * 2 // GROUP_LEN


def _pair(a: Tensor | None, b: Tensor | None, where: str) -> LowRank:
    if a is None or b is None:
        raise CheckpointRefused(f"{where}: A or B is missing")
    if a.shape[0] != b.shape[1] or not 0 < a.shape[0] <= _MAX_RANK:
        raise CheckpointRefused(f"{where}: A {tuple(a.shape)} and B {tuple(b.shape)} do not multiply")
    return LowRank(a, b)
