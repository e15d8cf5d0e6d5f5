from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import pytest

from quicksilver.errors import CheckpointRefused
from quicksilver.text.gguf_fields import read_fields


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_string("name", "Köln")
    writer.add_bool("yes", True)
    writer.add_uint8("byte", 255)
    writer.add_int64("big", -(1 << 40))
    writer.add_float64("real", 0.5)
    writer.add_array("words", ["a", "", "é"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m.gguf"


def test_every_kind_of_value_is_read(path: Path) -> None:
    fields = read_fields(path)
    assert fields.pop("general.architecture") == "llama"
    assert fields == {
        "name": "Köln",
        "yes": True,
        "byte": 255,
        "big": -(1 << 40),
        "real": 0.5,
        "words": ["a", "", "é"],
        "numbers": [1, -2, 3],
        "flags": [True, False],
    }


def test_every_cut_of_the_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    end = whole.index(b"flags") + 5 + 4 + 4 + 8 + 2
    for size in range(end):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointRefused):
            read_fields(path)


def header(num_fields: int, rest: bytes = b"", magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", magic, version, 0, num_fields) + rest


def field(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header(0, magic=b"PK\x03\x04"), "starts with"),
        (header(0, version=1), "version 1"),
        (header(1 << 40), "fields"),
        (header(1, struct.pack("<Q", 1 << 60)), "bytes of text"),
        (header(1, field(99, b"")), "unknown type 99"),
        (header(1, field(9, struct.pack("<IQ", 8, 1 << 62))), "items"),
        (header(1, field(9, struct.pack("<IQ", 0, 1 << 20))), "too early"),
        (header(1, field(9, struct.pack("<IQ", 9, 2))), "unknown type 9"),
        (header(1, field(8, struct.pack("<Q", 2) + b"\xff\xff")), "utf-8"),
    ],
)
def test_hostile_header_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointRefused, match=reason):
        read_fields(path)


def test_random_damage_is_read_or_refused(path: Path) -> None:
    whole = path.read_bytes()
    rng = random.Random(0)
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            outcomes.add(type(read_fields(path)))
        except CheckpointRefused as error:
            outcomes.add(type(error))
    assert outcomes == {dict, CheckpointRefused}
