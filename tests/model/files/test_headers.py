"""Hostile safetensors: refused with a reason, quickly, and with no other exception."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.files.headers import MAX_HEADER_BYTES, read_safetensors_header
from tests.model.build import random_model, small_config
from tests.support.saved_model import save_model

TINY = small_config(num_layers=1, dim=32, ffn_dim=32, num_heads=2, num_kv_heads=1, vocab_size=16)


def write(path: Path, header: Any, data: bytes = bytes(16), length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(start: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - start) // 4] if shape is None else shape, "data_offsets": [start, end]}


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int8)}, tmp_path / "x.safetensors", {"k": "v"})
    header = read_safetensors_header(tmp_path / "x.safetensors")
    assert header.entries["a"].shape == (2, 3)
    assert header.entries["b"].dtype == "I8"
    assert header.metadata == {"k": "v"}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"a": entry(0, 12)}, "unclaimed bytes after"),
        ({"a": entry(0, 20)}, "beyond the file"),
        ({"a": entry(0, 12), "b": entry(8, 16)}, "overlaps"),
        ({"a": entry(0, 4), "b": entry(8, 16)}, "unclaimed bytes before"),
        ({"a": entry(0, 16, [3])}, "do not hold"),
        ({"a": entry(0, 16, [2**40, 2**40])}, "do not hold"),
        ({"a": entry(0, 16, [-4])}, "not sizes"),
        ({"a": entry(0, 16, [4.0])}, "not sizes"),
        ({"a": entry(0, 16, [True, 4])}, "not sizes"),
        ({"a": entry(0, 16, [1] * 9 + [4])}, "not sizes"),
        ({"a": entry(16, 0, [4])}, "do not hold"),
        ({"a": entry(0, 16, dtype="PICKLE")}, "unknown"),
        ({"a": {"dtype": "F32", "shape": [4]}}, "needs dtype"),
        ({"a": []}, "needs dtype"),
        ({"../../etc/passwd": entry(0, 16)}, "plain name"),
        ({"/etc/passwd": entry(0, 16)}, "plain name"),
        ({"a\0b": entry(0, 16)}, "plain name"),
        ({"": entry(0, 16)}, "plain name"),
        ({"n" * 1000: entry(0, 16)}, "plain name"),
        ({"__metadata__": {"k": 1}, "a": entry(0, 16)}, "__metadata__"),
        ([1, 2], "JSON object"),
        (b'{"a": {}, "a": {}}', "appears twice"),
        (b"\xff\xfe", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
        ({f"t{i}": entry(0, 0) for i in range(70_000)}, "too many"),
    ],
)
def test_a_hostile_header_is_refused_with_the_reason(tmp_path: Path, header: Any, reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        read_safetensors_header(write(tmp_path / "x.safetensors", header))


@pytest.mark.parametrize("length", [2**63, MAX_HEADER_BYTES + 1, 10_000])
def test_a_header_longer_than_the_file_or_the_bound_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointRefused, match="header of"):
        read_safetensors_header(write(tmp_path / "x.safetensors", {"a": entry(0, 16)}, length=length))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(64)}, path)
    whole = path.read_bytes()
    for size in (0, 7, 8, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointRefused):
            read_safetensors_header(path)


@pytest.mark.parametrize(
    ("name", "magic"), [("w.bin", b"safe"), ("w.pt", b""), ("w.safetensors", b"PK\x03\x04"), ("w.gguf", b"\x80\x02")]
)
def test_pickles_are_refused_by_name_and_by_content(tmp_path: Path, name: str, magic: bytes) -> None:
    (tmp_path / name).write_bytes(magic + bytes(64))
    with pytest.raises(CheckpointRefused, match="not supported"):
        load_model(tmp_path / name)


@pytest.mark.parametrize("length", [0x280, 0x480, 0x4B50])
def test_a_header_whose_length_has_the_bytes_of_a_pickle_is_read(tmp_path: Path, length: int) -> None:
    text = json.dumps({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + text.ljust(length).encode() + bytes(4))
    assert path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK")
    assert list(read_safetensors_header(path).entries) == ["x"]


def test_a_thousand_mutated_files_are_refused_or_load(tmp_path: Path) -> None:
    save_model(random_model(TINY), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    rng, reasons = random.Random(0), []
    for _ in range(1000):
        path.write_bytes(mutate(whole, header_end, rng))
        try:
            load_model(tmp_path)
        except CheckpointRefused as error:
            reasons.append(str(error))
    assert len(reasons) > 800
    assert all(reasons)


def mutate(whole: bytes, header_end: int, rng: random.Random) -> bytes:
    """Flip, insert, drop or repeat a few bytes of the header, or cut or stretch the file."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(header_end), rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice(b'0123456789{}[]",:.-/\\')
        elif kind == 2:
            data[at:at] = rng.choice([b"0", b"9" * 20, b'"', b"..", b"{", b"\0"])
        elif kind == 3:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randint(1, 80)]
        else:
            data = data[: rng.randrange(len(data))] if rng.random() < 0.5 else data + bytes(rng.randint(1, 64))
        header_end = min(header_end, len(data) - 1)
        if header_end < 1:
            break
    return bytes(data)
