"""GGUF: every block format, permuted heads, doubled tables, and hostile headers."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from quicksilver.errors import CheckpointRefused
from quicksilver.model.families import FAMILIES
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.files.gguf import _TYPES, SUPPORTED, _unsupported, read_gguf_header, unpermute
from tests.model.build import small_config, write_gguf
from tests.model.files.test_headers import TINY, mutate

WIDE = small_config("qwen2", num_layers=1, dim=256, ffn_dim=512, num_heads=4, num_kv_heads=2, head_dim=64)

GGUF_FAMILIES = [name for name, family in FAMILIES.items() if family.gguf_architecture]


def same(found: torch.Tensor, *parts: np.ndarray) -> bool:
    return torch.equal(found, torch.from_numpy(np.concatenate(parts)))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    known = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {kind: known[kind] for kind in _TYPES} == _TYPES


def test_a_header_is_read_without_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes longer than the header."""
    values = write_gguf(tmp_path / "m.gguf", WIDE, "Q8_0")
    for name in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, name, None)
    assert read_gguf_header(tmp_path / "m.gguf").entries.keys() == values.keys()


def test_a_type_that_is_not_supported_is_named() -> None:
    q5_k = int(gguf.GGMLQuantizationType.Q5_K)
    assert "type Q5_K is not supported; known: F32, F16" in _unsupported(q5_k, "m.gguf").message


@pytest.mark.parametrize("kind", SUPPORTED)
def test_every_block_format_reads_as_the_gguf_package_reads_it(tmp_path: Path, kind: str) -> None:
    values = write_gguf(tmp_path / "m.gguf", WIDE, kind)
    model = load_model(tmp_path / "m.gguf")
    layer = model.layers[0]
    assert same(model.tokens.weight, values["token_embd.weight"])
    assert same(model.head.weight, values["output.weight"])
    assert same(layer.qkv.weight, *(values[f"blk.0.attn_{part}.weight"] for part in "qkv"))
    assert same(layer.qkv.bias, *(values[f"blk.0.attn_{part}.bias"] for part in "qkv"))
    assert same(layer.o.weight, values["blk.0.attn_output.weight"])
    assert same(layer.gate_up.weight, values["blk.0.ffn_gate.weight"], values["blk.0.ffn_up.weight"])
    assert same(layer.down.weight, values["blk.0.ffn_down.weight"])
    assert not torch.isnan(model.tokens.weight).any()


def test_llama_heads_are_reordered_and_qwen_heads_are_not(tmp_path: Path) -> None:
    for family in GGUF_FAMILIES:
        config = small_config(family)
        values = write_gguf(tmp_path / "m.gguf", config)
        q = torch.from_numpy(values["blk.1.attn_q.weight"])
        found = load_model(tmp_path / "m.gguf").layers[1].qkv.weight[: config.q_dim]
        assert torch.equal(found, unpermute(q, config.num_heads) if family == "llama" else q)


def test_unpermute_undoes_the_converters_interleaving() -> None:
    heads, head_dim = 3, 8
    halves = torch.randn(heads * head_dim, 5)
    pairs = halves.view(heads, 2, head_dim // 2, 5).transpose(1, 2).reshape(halves.shape)
    assert torch.equal(unpermute(pairs, heads), halves)


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_a_tied_file_has_one_table(tmp_path: Path, family: str) -> None:
    values = write_gguf(tmp_path / "m.gguf", small_config(family, tied_head=True))
    model = load_model(tmp_path / "m.gguf")
    assert model.head.weight is model.tokens.weight
    assert same(model.tokens.weight, values["token_embd.weight"])


def test_a_table_stored_twice_is_tied_and_the_heads_copy_kept(tmp_path: Path) -> None:
    config = small_config("qwen2")
    table = np.random.default_rng(3).normal(0, 0.2, (config.vocab_size, config.dim)).astype(np.float32)
    stored = {"token_embd.weight": gguf.GGMLQuantizationType.Q4_0, "output.weight": gguf.GGMLQuantizationType.Q8_0}
    values = rewrite(
        tmp_path, config, {name: (gguf.quants.quantize(table, kind), kind) for name, kind in stored.items()}
    )
    model = load_model(tmp_path / "m.gguf")
    assert model.config.tied_head
    assert same(model.tokens.weight, values["output.weight"])


def rewrite(tmp_path: Path, config: object, tensors: dict[str, tuple[np.ndarray, object]]) -> dict[str, np.ndarray]:
    """A file like write_gguf's with some tensors replaced, through the package's own reader and writer."""
    write_gguf(tmp_path / "plain.gguf", config)  # type: ignore[arg-type]
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=sub_type)
    values = {}
    for tensor in reader.tensors:
        stored, kind = tensors.get(tensor.name, (tensor.data, tensor.tensor_type))
        writer.add_tensor(tensor.name, stored, raw_dtype=kind)
        values[tensor.name] = gguf.quants.dequantize(stored, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def header_of(
    *, version: int = 3, tensors: int = 0, fields: bytes = b"", num_fields: int = 0, rest: bytes = b""
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, num_fields) + fields + rest


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GGML" + bytes(40), "not a GGUF"),
        (b"GGUF", "too short"),
        (header_of(version=1), "version"),
        (header_of(version=0x03000000), "byte order"),
        (header_of(tensors=2**60), "too many"),
        (header_of(num_fields=2**60), "too many"),
        (header_of(num_fields=1, fields=struct.pack("<Q", 2**62)), "too many"),
        (header_of(num_fields=1, fields=text("k") + struct.pack("<I", 99)), "unknown type"),
        (header_of(num_fields=1, fields=text("k") + struct.pack("<IIQ", 9, 9, 3)), "array of unknown"),
        (header_of(num_fields=1, fields=text("k") + struct.pack("<IIQ", 9, 8, 2**50)), "too many"),
        (header_of(num_fields=1, fields=text("k") + struct.pack("<IIQ", 9, 8, 2**25)), "header exceeds"),
        (header_of(num_fields=1, fields=text("k") + struct.pack("<IIQ", 9, 10, 2**25)), "header exceeds"),
        (header_of(num_fields=1, fields=text(b"\xff\xff") + struct.pack("<II", 4, 1)), "UTF-8"),
        (header_of(num_fields=2, fields=(text("k") + struct.pack("<II", 4, 1)) * 2), "twice"),
        (header_of(num_fields=1, fields=text("general.alignment") + struct.pack("<II", 4, 3)), "power of two"),
        (header_of(tensors=1, rest=tensor("a", (8,)) + bytes(16)), "beyond the file"),
        (header_of(tensors=1, rest=tensor("a", (8,), offset=7) + bytes(64)), "aligned"),
        (header_of(tensors=1, rest=tensor("a", (8,), offset=2**60) + bytes(64)), "unclaimed"),
        (header_of(tensors=1, rest=tensor("../a", (8,)) + bytes(64)), "plain name"),
        (header_of(tensors=1, rest=tensor("a", (2**40, 2**40)) + bytes(64)), "beyond the file"),
        (header_of(tensors=1, rest=tensor("a", (0,)) + bytes(64)), "empty"),
        (header_of(tensors=1, rest=tensor("a", (1,) * 9) + bytes(64)), "dimensions"),
        (header_of(tensors=1, rest=tensor("a", (8,), kind=8) + bytes(64)), "not whole blocks"),
        (header_of(tensors=1, rest=tensor("a", (256,), kind=10) + bytes(256)), "Q2_K is not supported"),
        (header_of(tensors=1, rest=tensor("a", (8,), kind=77) + bytes(64)), "unknown type"),
        (header_of(tensors=2, rest=tensor("a", (8,)) * 2 + bytes(128)), "twice"),
        (header_of(tensors=2, rest=tensor("a", (8,)) + tensor("b", (8,)) + bytes(128)), "overlaps"),
        (header_of(tensors=1, rest=tensor("a", (8,)) + bytes(256)), "after the last"),
    ],
)  # fmt: skip
def test_a_hostile_gguf_header_is_refused_with_the_reason(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(CheckpointRefused, match=reason):
        read_gguf_header(tmp_path / "m.gguf")


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", small_config("qwen2"))
    raw = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(raw.replace(b"blk.1.attn_q.bias", b"blk.1.attn_z.bias"))
    with pytest.raises(CheckpointRefused, match=r"attn_q\.bias is missing"):
        load_model(tmp_path / "m.gguf")


def test_a_thousand_mutated_files_are_refused_or_load(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, TINY)
    whole = path.read_bytes()
    first = min(entry.start for entry in read_gguf_header(path).entries.values())
    rng, reasons = random.Random(1), []
    for _ in range(1000):
        path.write_bytes(mutate(whole, first, rng))
        try:
            load_model(path)
        except CheckpointRefused as error:
            reasons.append(str(error))
    assert len(reasons) > 500
    assert all(reasons)


def test_other_checkpoints_load_where_the_gguf_package_is_missing() -> None:
    program = "import sys; sys.modules['gguf'] = None; import quicksilver.model.files.checkpoint"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
