"""Adapters in the layout of PEFT: `adapter_config.json` and `adapter_model.safetensors`, in a zip archive.

Export splits the fused linears into those of the checkpoint. Import checks everything before it is used: names, sizes,
shapes and values; a refused archive raises InvalidRequest with the reason.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.model.config import ModelConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Other files that PEFT writes beside the two; they are not read.
IGNORED = ("README.md", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "training_args.bin")
MAX_RANK = 64
MAX_CONFIG_BYTES = 2**16
MAX_HEADER_BYTES = 2**23
# Uncompressed bytes per compressed byte. Weights hardly shrink.
MAX_RATIO = 20
# Values beyond this are not those of a trained adapter.
MAX_VALUE = 1e4
_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d{1,4})\.(self_attn|mlp)\.(\w+)\.lora_(A|B)(?:\.default)?\.weight"
)
# Linear of an adapter file -> its module in a checkpoint, and the linears that are fused in it.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "o": ("self_attn", ("o_proj",)),
    "gu": ("mlp", ("gate_proj", "up_proj")),
    "dn": ("mlp", ("down_proj",)),
}
TARGETS = [name for _, names in PARTS.values() for name in names]


def part_dims(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear of a layer, by its name in a checkpoint."""
    dim, ffn = config.dim, config.ffn_dim
    return {
        "q_proj": (config.q_dim, dim),
        "k_proj": (config.kv_dim, dim),
        "v_proj": (config.kv_dim, dim),
        "o_proj": (dim, config.q_dim),
        "gate_proj": (ffn, dim),
        "up_proj": (ffn, dim),
        "down_proj": (dim, ffn),
    }


def to_peft(tensors: Mapping[str, Tensor], config: ModelConfig, base: str) -> bytes:
    """The archive of an adapter in the tensor layout of training. Equal adapters give equal bytes."""
    dims, found = part_dims(config), dict[str, Tensor]()
    rank = next(tensor.shape[0] for name, tensor in tensors.items() if name.endswith(".A"))
    for layer in range(config.num_layers):
        for linear, (module, names) in PARTS.items():
            a, b = (tensors[f"{layer}.{linear}.{side}"].detach().half().cpu() for side in "AB")
            for name, part in zip(names, b.split([dims[name][0] for name in names]), strict=True):
                place = f"base_model.model.model.layers.{layer}.{module}.{name}"
                found[f"{place}.lora_A.weight"] = a.clone().contiguous()
                found[f"{place}.lora_B.weight"] = part.clone().contiguous()
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": TARGETS,
        "inference_mode": True,
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, content in ((CONFIG, json.dumps(described, indent=1).encode()), (WEIGHTS, save(found))):
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return archive.getvalue()


def from_peft(content: bytes, config: ModelConfig) -> dict[str, Tensor]:
    """The adapter of an archive in the tensor layout of training."""
    described, weights = _read_archive(content, config)
    scale, rank = _scale(described)
    tensors = _read_weights(weights, config, rank)
    result: dict[str, Tensor] = {}
    for layer in range(config.num_layers):
        for linear, (_, names) in PARTS.items():
            pairs = [_pair(tensors, layer, name, config) for name in names]
            a, b = _fused(pairs)
            result[f"{layer}.{linear}.A"], result[f"{layer}.{linear}.B"] = a, b * scale
    # Adapters are stored in fp16, where a scaled value may be infinite.
    if not all(bool(tensor.half().isfinite().all()) for tensor in result.values()):
        raise _refused("values times lora_alpha / r are too large for fp16; lower lora_alpha")
    return result


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the adapter is refused: {reason}", param="training_file", code="invalid_adapter")


def _read_archive(content: bytes, config: ModelConfig) -> tuple[dict[str, Any], bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            _check_members(members, len(archive.infolist()), max_weight_bytes(config))
            read = {name: _extract(archive, members[name]) for name in (CONFIG, WEIGHTS)}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise _refused(f"the zip archive cannot be read ({type(error).__name__})") from None
    try:
        described = json.loads(read[CONFIG])
    except (ValueError, RecursionError):
        raise _refused(f"{CONFIG} is not valid JSON") from None
    if not isinstance(described, dict):
        raise _refused(f"{CONFIG} is not a JSON object")
    return described, read[WEIGHTS]


def max_weight_bytes(config: ModelConfig) -> int:
    """Of an fp32 adapter of the highest rank for every linear, with its header."""
    return 4 * MAX_RANK * config.num_layers * sum(a + b for a, b in part_dims(config).values()) + MAX_HEADER_BYTES


def _check_members(members: Mapping[str, zipfile.ZipInfo], num_entries: int, max_bytes: int) -> None:
    if num_entries > 32 or len(members) > 16:
        raise _refused("the archive has too many entries")
    for name, member in members.items():
        if name not in (CONFIG, WEIGHTS, *IGNORED):
            raise _refused(f"the archive has an unexpected entry {name[:80]!r}; put {CONFIG} and {WEIGHTS} at its top")
        is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
        if is_link or member.flag_bits & 1:
            raise _refused(f"{name} is a link or is encrypted")
    for name, most in ((CONFIG, MAX_CONFIG_BYTES), (WEIGHTS, max_bytes)):
        if name not in members:
            raise _refused(f"{name} is missing")
        if members[name].file_size > most:
            raise _refused(f"{name} has {members[name].file_size} bytes; at most {most} are read")
        if members[name].file_size > MAX_RATIO * max(members[name].compress_size, 4096):
            raise _refused(f"{name} is compressed more than {MAX_RATIO} times")


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """At most as many bytes as the entry announces; an entry that has more is refused."""
    with archive.open(member) as file:
        content = file.read(member.file_size + 1)
    if len(content) != member.file_size:
        raise _refused(f"{member.filename} has another size than the archive says")
    return content


def _scale(described: Mapping[str, Any]) -> tuple[float, int]:
    """The factor of B, and the rank."""
    if described.get("peft_type") != "LORA":
        raise _refused("peft_type is not LORA")
    for key, allowed in (("bias", ("none", None)), ("use_dora", (False, None)), ("fan_in_fan_out", (False, None))):
        if described.get(key) not in allowed:
            raise _refused(f"{key} is not supported")
    for key in ("modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication", "trainable_token_indices"):
        if described.get(key):
            raise _refused(f"{key} is not supported")
    rank, alpha = described.get("r"), described.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise _refused(f"the rank is a whole number from 1 to {MAX_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 1024:
        raise _refused("lora_alpha is a number above 0, at most 1024")
    return alpha / (rank**0.5 if described.get("use_rslora") else rank), rank


def _read_weights(content: bytes, config: ModelConfig, rank: int) -> dict[tuple[int, str, str], Tensor]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise _refused(f"{WEIGHTS} is not a safetensors file")
    try:
        loaded = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise _refused(f"{WEIGHTS} is not a safetensors file ({error})") from None
    dims, modules = part_dims(config), {name: module for module, names in PARTS.values() for name in names}
    tensors: dict[tuple[int, str, str], Tensor] = {}
    for key, tensor in loaded.items():
        match = _NAME.fullmatch(key)
        if match is None or modules.get(match[3]) != match[2] or int(match[1]) >= config.num_layers:
            raise _refused(f"the tensor {key[:120]!r} belongs to no linear of this model")
        out, into = dims[match[3]]
        shape = (rank, into) if match[4] == "A" else (out, rank)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise _refused(f"{key} is {tensor.dtype} {tuple(tensor.shape)}; a float tensor {shape} is needed")
        values = tensor.float()
        if not bool(torch.isfinite(values).all()) or float(values.abs().max()) > MAX_VALUE:
            raise _refused(f"{key} has values that are not finite or beyond {MAX_VALUE:g}")
        tensors[int(match[1]), match[3], match[4]] = values
    if not tensors:
        raise _refused(f"{WEIGHTS} has no tensors")
    return tensors


def _pair(
    tensors: Mapping[tuple[int, str, str], Tensor], layer: int, name: str, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """A and B of one linear; a linear that the adapter leaves alone gets a pair of rank 1 that is zero."""
    a, b = tensors.get((layer, name, "A")), tensors.get((layer, name, "B"))
    if (a is None) != (b is None):
        raise _refused(f"layer {layer} {name}: lora_A or lora_B is missing")
    if a is None or b is None:
        out, into = part_dims(config)[name]
        return torch.zeros(1, into), torch.zeros(out, 1)
    return a, b


def _fused(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One pair for linears that are fused into one. Linears with the same A keep their rank; others add theirs."""
    first = pairs[0][0]
    if all(a.shape == first.shape and torch.equal(a, first) for a, _ in pairs):
        return first, torch.cat([b for _, b in pairs])
    return torch.cat([a for a, _ in pairs]), torch.block_diag(*(b for _, b in pairs))
