"""Zip archives with an adapter in the layout of PEFT, which `model/files/peft.py` reads and writes.

An uploaded archive is untrusted input. It is checked before it is used: names, sizes, shapes and values; a refused one
raises InvalidRequest with the reason.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.config import ModelConfig
from quicksilver.model.files import peft
from quicksilver.model.files.peft import CONFIG_FILE, WEIGHTS_FILE
from quicksilver.model.lowrank import Adapter, linear_shapes
from quicksilver.training.export import low_rank_layers, low_rank_tensors

# Other files that PEFT writes beside the two; they are not read.
IGNORED = ("README.md", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "training_args.bin")
MAX_RANK = 64
MAX_CONFIG_BYTES = 2**16
MAX_HEADER_BYTES = 2**23
# Uncompressed bytes per compressed byte. Weights hardly shrink.
MAX_RATIO = 20
# Values beyond this are not those of a trained adapter. It is less than the largest fp16 number, in which they are
# stored.
MAX_VALUE = 1e4


def to_peft(tensors: Mapping[str, Tensor], config: ModelConfig, base: str) -> bytes:
    """The archive of an adapter in the tensor layout of training, in fp16. Equal adapters give equal bytes."""
    adapter = Adapter(low_rank_layers({name: tensor.half() for name, tensor in tensors.items()}))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, content in peft.to_peft(adapter, config, base).items():
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return archive.getvalue()


def from_peft(content: bytes, config: ModelConfig) -> dict[str, Tensor]:
    """The adapter of an archive in the tensor layout of training, with a pair for every linear."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in _read_archive(content, config).items():
            (Path(folder) / name).write_bytes(data)
        try:
            tensors = low_rank_tensors(peft.load_peft(Path(folder), config, MAX_RANK))
        except CheckpointRefused as error:
            raise _refused(error.message) from None
    if not all(bool((tensor.abs() <= MAX_VALUE).all()) for tensor in tensors.values()):
        raise _refused(f"values times lora_alpha / r are not finite or beyond {MAX_VALUE:g}")
    nothing = {
        f"{layer}.{name}.{side}": torch.zeros(shape)
        for layer in range(config.num_layers)
        for name, (out, into) in linear_shapes(config).items()
        for side, shape in (("A", (1, into)), ("B", (out, 1)))
    }
    return {**nothing, **tensors}


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the adapter is refused: {reason}", param="training_file", code="invalid_adapter")


def _read_archive(content: bytes, config: ModelConfig) -> dict[str, bytes]:
    """The two files of the layout, by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            _check_members(members, len(archive.infolist()), max_weight_bytes(config))
            return {name: _extract(archive, members[name]) for name in (CONFIG_FILE, WEIGHTS_FILE)}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise _refused(f"the zip archive cannot be read ({type(error).__name__})") from None


def max_weight_bytes(config: ModelConfig) -> int:
    """Of an fp32 adapter of the highest rank for every projection, with its header."""
    num_values = MAX_RANK * config.num_layers * sum(map(sum, peft.projection_shapes(config).values()))
    return 4 * num_values + MAX_HEADER_BYTES


def _check_members(members: Mapping[str, zipfile.ZipInfo], num_entries: int, max_bytes: int) -> None:
    if num_entries > 32 or len(members) > 16:
        raise _refused("the archive has too many entries")
    for name, member in members.items():
        if name not in (CONFIG_FILE, WEIGHTS_FILE, *IGNORED):
            raise _refused(
                f"the archive has an unexpected entry {name[:80]!r}; put {CONFIG_FILE} and {WEIGHTS_FILE} at its top"
            )
        is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
        if is_link or member.flag_bits & 1:
            raise _refused(f"{name} is a link or is encrypted")
    for name, most in ((CONFIG_FILE, MAX_CONFIG_BYTES), (WEIGHTS_FILE, max_bytes)):
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
