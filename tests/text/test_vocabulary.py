from __future__ import annotations

import json
import lzma
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers

from quicksilver.errors import CheckpointRefused
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import has_tokenizer, read_directory, read_fields, read_gguf
from tests.support.fakes import SPECIAL_NAMES, byte_characters, tokenizer_json


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


_CONTROL, _NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL


def write_gguf(path: Path, *, model: str = "gpt2", pre: str = "smollm", eos_id: int = 2, num_types: int = 274) -> Path:
    """A GGUF without tensors: nano's special tokens, the bytes, and one merge."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*SPECIAL_NAMES, *byte_characters(), "hi"])
    writer.add_token_types(([_CONTROL] * 17 + [_NORMAL] * 257)[:num_types])
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(eos_id)
    writer.add_bos_token_id(1)
    writer.add_chat_template("{{ bos_token }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_gives_tokens_merges_ends_and_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf"))
    assert tokenizer.vocab_size == 274
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.encode("hi h") == [273, 17 + ord(" "), 17 + ord("h")]
    assert (tokenizer.chat_template, tokenizer.template_tokens["bos_token"]) == ("{{ bos_token }}", "<|im_start|>")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("model", "llama", "only gpt2"), ("pre", "other", "'other'"), ("num_types", 9, "types 9")],
)
def test_unknown_tokenizer_is_refused_with_the_reason(tmp_path: Path, field: str, value: Any, reason: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", **{field: value})
    with pytest.raises(CheckpointRefused, match=reason):
        read_gguf(path)


def test_gguf_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointRefused, match=r"no tokenizer\.ggml\.model"):
        read_gguf(tmp_path / "m.gguf")


def test_skill_adapter_brings_the_reserved_roles(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert Tokenizer.for_model(path, None).roles.fim_prefix is None
    assert Tokenizer.for_model(path, "skill.safetensors").roles.fim_prefix == 11


def test_end_token_out_of_range_is_left_out(tmp_path: Path) -> None:
    assert read_gguf(write_gguf(tmp_path / "m.gguf", eos_id=9999)).eos_ids == (2, 0)


@pytest.mark.parametrize("size", [0, 3, 40, 500])
def test_truncated_gguf_is_refused(tmp_path: Path, size: int) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointRefused):
        read_gguf(path)


def test_damaged_gguf_gives_a_tokenizer_or_a_refusal(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    rng = random.Random(1)
    outcomes = set()
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            outcomes.add(Tokenizer.from_gguf(path).decode([17 + ord("a")]) != "")
        except CheckpointRefused:
            outcomes.add(None)
    assert {True, None} <= outcomes


def published_json(shared: Path) -> str:
    with lzma.open(shared / "data/train/tokenizer_smollm2.json.xz", "rt", encoding="utf-8") as file:
        return file.read()


def test_gguf_of_nano_equals_the_published_tokenizer(smollm2: Tokenizer, shared: Path) -> None:
    published = json.loads(published_json(shared))
    rebuilt = json.loads(smollm2.to_json())
    for key in ("vocab", "merges"):
        assert rebuilt["model"][key] == published["model"][key]
    assert rebuilt["added_tokens"] == published["added_tokens"]
    assert (smollm2.vocab_size, smollm2.reserved_family) == (49152, "smollm2")


def test_nano_encodes_as_the_published_tokenizer(smollm2: Tokenizer, shared: Path, naughty_strings: list[str]) -> None:
    published = tokenizers.Tokenizer.from_str(published_json(shared))
    plain = [text for text in naughty_strings if not any(name in text for name in SPECIAL_NAMES)]
    assert len(plain) > 400
    assert [smollm2.encode(text) for text in plain] == [published.encode(text).ids for text in plain]


def test_qwen2_words_are_split_as_its_authors_do(tmp_path: Path) -> None:
    full = tokenizers.Tokenizer.from_str(read_gguf(write_gguf(tmp_path / "m.gguf", pre="qwen2")).tokenizer_json)

    def words(text: str) -> list[str]:
        return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in full.pre_tokenizer.pre_tokenize_str(text)]

    assert words("I'LL pay 1234!\n\n  x") == ["I", "'LL", " pay", " ", "1", "2", "3", "4", "!\n\n", " ", " x"]
    assert words("a(b).c  \n d") == ["a", "(b", ").", "c", "  \n", " d"]
    assert full.normalizer.normalize_str("e\u0301") == "\u00e9"
    assert Tokenizer.from_gguf(tmp_path / "m.gguf").encode("e\u0301") == [17 + byte for byte in "é".encode()]


def test_smollm_splits_digits_and_normalises_nothing(tmp_path: Path) -> None:
    full = tokenizers.Tokenizer.from_str(read_gguf(write_gguf(tmp_path / "m.gguf")).tokenizer_json)
    assert [piece for piece, _ in full.pre_tokenizer.pre_tokenize_str("a12 b")] == ["a", "1", "2", "Ġb"]
    assert full.normalizer is None


def write_folder(folder: Path, **files: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_folder_gives_ends_size_and_template(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>", "chat_template": "in the config"}
    write_folder(
        tmp_path, tokenizer_config=config, generation_config={"eos_token_id": [5, 2]}, config={"vocab_size": 300}
    )
    found = read_directory(tmp_path)
    assert (found.eos_ids, found.vocab_size, found.chat_template) == ((5, 2, 0), 300, "in the config")
    assert found.template_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    write_folder(tmp_path, tokenizer_config={"chat_template": "in the config"})
    (tmp_path / "chat_template.jinja").write_text("in the file")
    assert read_directory(tmp_path).chat_template == "in the file"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}], "t"),
        ([{"name": "default", "template": "d"}], "d"),
        (None, None),
    ],
)
def test_of_several_templates_the_one_with_tools_is_taken(tmp_path: Path, stated: Any, expected: str | None) -> None:
    write_folder(tmp_path, tokenizer_config={"chat_template": stated})
    assert read_directory(tmp_path).chat_template == expected


def test_folder_without_configuration_is_enough(tmp_path: Path) -> None:
    write_folder(tmp_path, generation_config={"eos_token_id": 2})
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.chat_template) == (273, (2, 0), None)


def test_folder_with_a_gguf_alone_is_read_from_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert Tokenizer.load(tmp_path).vocab_size == 274
    write_folder(tmp_path)
    assert Tokenizer.load(tmp_path).vocab_size == 273


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"model": {"vocab": {}}}', '{"added_tokens": 3}', "\xff"])
def test_folder_with_a_broken_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointRefused):
        Tokenizer.from_dir(tmp_path)


def write_slow_folder(folder: Path, kind: str = "Qwen2Tokenizer") -> tokenizers.Tokenizer:
    """A trained tokenizer of Qwen's kind, split into vocab.json, merges.txt and lists of added tokens."""
    fast = tokenizers.Tokenizer.from_str(read_gguf(write_gguf(folder / "m.gguf", pre="qwen2")).tokenizer_json)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer, trained.pre_tokenizer, trained.decoder = fast.normalizer, fast.pre_tokenizer, fast.decoder
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False)
    trained.train_from_iterator(["the thing # # that they # see, l'été à 12 heures!\n\n"] * 4, trainer)
    (folder / "m.gguf").unlink()
    full = json.loads(trained.to_str())
    vocab = full["model"]["vocab"]
    merges = "\n".join(" ".join(merge) for merge in full["model"]["merges"])
    added = {"<|endoftext|>": len(vocab), "<|im_end|>": len(vocab) + 1, "<|mask|>": len(vocab) + 2}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "tokenizer_class": kind,
        "eos_token": "<|im_end|>",
        "additional_special_tokens": ["<|mask|>"],
        "added_tokens_decoder": {str(added[name]): {"content": name, **flags} for name in list(added)[:2]},
    }
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    trained.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in added])
    return trained


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "DreamTokenizer"])
def test_a_tokenizer_in_two_files_equals_it_in_one(tmp_path: Path, kind: str) -> None:
    trained = write_slow_folder(tmp_path, kind)
    found = Tokenizer.load(tmp_path)
    texts = [
        "the thing that # they see",
        "l'e\u0301te\u0301 à 1234 heures!\n\n  x",
        "# # ##",
        "\u3053\u3093 \U0001f600\x00",
        "",
    ]
    assert [found.encode(text) for text in texts] == [trained.encode(text).ids for text in texts]
    assert len(found.encode("the thing")) < len("the thing")
    size = trained.get_vocab_size()
    assert (found.vocab_size, found.eos_ids) == (size, (size - 2, size - 3))
    assert found.special_tokens == {"<|endoftext|>": size - 3, "<|im_end|>": size - 2, "<|mask|>": size - 1}
    assert has_tokenizer(tmp_path)


def test_two_files_of_another_class_are_refused_by_name(tmp_path: Path) -> None:
    write_slow_folder(tmp_path, "GPT2Tokenizer")
    with pytest.raises(CheckpointRefused, match="GPT2Tokenizer"):
        read_directory(tmp_path)
    (tmp_path / "merges.txt").unlink()
    assert not has_tokenizer(tmp_path)


@pytest.mark.parametrize("broken", ["", "[]", '{"a": "b"}'])
def test_two_broken_files_are_refused(tmp_path: Path, broken: str) -> None:
    write_slow_folder(tmp_path)
    (tmp_path / "vocab.json").write_text(broken)
    with pytest.raises(CheckpointRefused):
        Tokenizer.load(tmp_path)


def test_a_template_in_a_json_file_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path, chat_template={"chat_template": "in a JSON file"})
    assert read_directory(tmp_path).chat_template == "in a JSON file"


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match=r"no tokenizer\.json"):
        read_directory(tmp_path)
