"""A checkpoint's tokenizer as data: from a directory of tokenizer files, or from the metadata of a GGUF.

Only reads files. Both sources give a `Vocabulary`, whose tokenizer.json is the checkpoint's own or, for byte-level
BPE in a GGUF or in vocab.json and merges.txt, rebuilt from its tokens and merges.

Every step through a GGUF file is checked against the end of the file and against a bound, so a damaged or hostile file
is refused quickly. The `gguf` package's reader trusts the file's counts and takes ten seconds for a vocabulary of
150,000 tokens.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicksilver.errors import CheckpointRefused

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_FIELDS, _MAX_ITEMS, _MAX_STRING = 1 << 12, 1 << 21, 1 << 24


def read_fields(path: Path) -> dict[str, Any]:
    """All metadata fields. CheckpointRefused where the file is not a readable GGUF."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise CheckpointRefused(f"{path} is too short for a GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _FieldReader(data).fields()
            except (ValueError, struct.error) as error:
                raise CheckpointRefused(f"{path} is not a readable GGUF: {error}") from None


class _FieldReader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> dict[str, Any]:
        magic, version, _, num_fields = self._unpack("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"starts with {magic!r}, version {version}")
        self._check(num_fields, _MAX_FIELDS, "fields")
        return {self._string(): self._value(self._unpack("I")[0]) for _ in range(num_fields)}

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._unpack(self._form(kind))[0]

    def _array(self) -> list[Any]:
        kind, count = self._unpack("IQ")
        self._check(count, _MAX_ITEMS, "items")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"{count}{self._form(kind)}"))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        self._check(length, _MAX_STRING, "bytes of text")
        return str(self._take(length), "utf-8")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def _take(self, num_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + num_bytes]
        if len(taken) < num_bytes:
            raise ValueError("it ends too early")
        self._at += num_bytes
        return taken

    def _form(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"value of unknown type {kind}")
        return _NUMBERS[kind]

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise ValueError(f"{count} {what}")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as data. `tokenizer_json` is a complete tokenizer.json, added tokens included."""

    tokenizer_json: str
    # Rows of the embedding. There may be more rows than named tokens.
    vocab_size: int
    eos_ids: tuple[int, ...]
    chat_template: str | None = None
    # Tokens that templates name by variable: bos_token, eos_token, …
    template_tokens: Mapping[str, str] = field(default_factory=dict)


_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_END_NAMES = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>")

_TEMPLATE_TOKENS = ("bos_token", "eos_token")
# Files of a tokenizer without tokenizer.json (a "slow" one of Hugging Face), and the classes that split as Qwen2 does.
_SLOW_FILES = ("vocab.json", "merges.txt")
_QWEN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files that `read_directory` needs."""
    return (folder / "tokenizer.json").is_file() or all((folder / name).is_file() for name in _SLOW_FILES)


def read_directory(folder: Path) -> Vocabulary:
    """The tokenizer.json of a checkpoint, with the tokens and the template of its other configuration files."""
    if not has_tokenizer(folder):
        raise CheckpointRefused(f"{folder} has no tokenizer.json, and no vocab.json with merges.txt")
    source = folder / "tokenizer.json"
    with _refusing_nonsense(source if source.is_file() else folder / "vocab.json"):
        text = source.read_text(encoding="utf-8") if source.is_file() else _from_slow_files(folder)
        return _from_files(text, folder)


def read_gguf(path: Path) -> Vocabulary:
    """The tokenizer of a GGUF; CheckpointRefused if its kind is not supported."""
    prefix = "tokenizer.ggml."
    fields = read_fields(path)
    found = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    with _refusing_nonsense(path):
        return _rebuild({**found, "chat_template": fields.get("tokenizer.chat_template")}, path)


@contextmanager
def _refusing_nonsense(path: Path) -> Iterator[None]:
    """Converts exceptions caused by malformed tokenizer data into CheckpointRefused."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointRefused(f"{path} describes its tokens in a way that cannot be read: {error!r}") from error


def _from_files(text: str, folder: Path) -> Vocabulary:
    full = _parse_object(text, folder / "tokenizer.json")
    ids = {token["content"]: token["id"] for token in full.get("added_tokens", [])}
    config = _read_json(folder / "tokenizer_config.json")
    return Vocabulary(
        tokenizer_json=text,
        vocab_size=_vocab_size(full, ids, _read_json(folder / "config.json")),
        eos_ids=_eos_ids(ids, [*_stated_eos(folder), ids.get(_content(config.get("eos_token")) or "")]),
        chat_template=_template_of(folder, config),
        template_tokens={name: token for name in _TEMPLATE_TOKENS if (token := _content(config.get(name)))},
    )


def _from_slow_files(folder: Path) -> str:
    """A tokenizer.json from vocab.json, merges.txt and the lists of added tokens."""
    config = _read_json(folder / "tokenizer_config.json")
    if (kind := config.get("tokenizer_class")) not in _QWEN_CLASSES:
        raise CheckpointRefused(
            f"{folder} has no tokenizer.json; from vocab.json and merges.txt only tokenizers of Qwen2 are read, not "
            f"{kind!r}"
        )
    vocab = _read_json(folder / "vocab.json")
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [line for i, line in enumerate(lines) if line and not (i == 0 and line.startswith("#version"))]
    full = _tokenizer_json("qwen2", vocab, merges, folder / "vocab.json")
    return json.dumps({**full, "added_tokens": _slow_added(folder, config)}, ensure_ascii=False)


def _slow_added(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens outside vocab.json, by id: those of tokenizer_config.json with their flags, then other ones."""
    special = {_content(config.get(name)) for name in config if name.endswith("_token")}
    special |= {_content(token) for token in config.get("additional_special_tokens") or []}
    names = _read_json(folder / "added_tokens.json")
    found = {i: _added(i, name, _CONTROL if name in special else _USER_DEFINED) for name, i in names.items()}
    for key, token in (config.get("added_tokens_decoder") or {}).items():
        kind = _CONTROL if token.get("special") else _USER_DEFINED
        flags = {flag: bool(token.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
        found[int(key)] = {**_added(int(key), token["content"], kind), **flags}
    return [found[i] for i in sorted(found)]


def _read_json(path: Path) -> dict[str, Any]:
    return _parse_object(path.read_text(encoding="utf-8"), path) if path.is_file() else {}


def _parse_object(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointRefused(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointRefused(f"{path} is not a JSON object")
    return value


def _content(token: object) -> str | None:
    """A token as tokenizer_config.json writes it: a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _stated_eos(folder: Path) -> list[int]:
    stated = _read_json(folder / "generation_config.json").get("eos_token_id", [])
    return [stated] if isinstance(stated, int) else list(stated or [])


def _eos_ids(ids: Mapping[str, int], stated: Iterable[int | None]) -> tuple[int, ...]:
    """The end tokens that the checkpoint states, then its usual ones: each of them ends an answer."""
    usual = (ids.get(name) for name in _END_NAMES)
    return tuple(dict.fromkeys(i for i in (*stated, *usual) if i is not None))


def _vocab_size(full: Mapping[str, Any], ids: Mapping[str, int], config: Mapping[str, Any]) -> int:
    stated = config.get("vocab_size", 0)
    known = full["model"]["vocab"]
    highest = max(known.values() if isinstance(known, dict) else [len(known) - 1], default=-1)
    return max(stated if isinstance(stated, int) else 0, highest + 1, max(ids.values(), default=-1) + 1)


def _template_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    stated = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(stated, list):
        by_name = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = by_name.get("tool_use", by_name.get("default"))
    return stated if isinstance(stated, str) else None


def _rebuild(fields: Mapping[str, Any], path: Path) -> Vocabulary:
    if missing := [name for name in ("model", "tokens", "token_type", "merges") if name not in fields]:
        raise CheckpointRefused(f"{path} has no tokenizer.ggml.{missing[0]}")
    if fields["model"] != "gpt2":
        raise CheckpointRefused(f"{path} has a {fields['model']!r} tokenizer; from GGUF only gpt2 is read")
    tokens, kinds = fields["tokens"], fields["token_type"]
    if len(tokens) != len(kinds):
        raise CheckpointRefused(f"{path} names {len(tokens)} tokens but types {len(kinds)}")
    added = [_added(i, tokens[i], kind) for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
    ids = {token["content"]: token["id"] for token in added}
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    full = _tokenizer_json(fields.get("pre", ""), vocab, fields["merges"], path)
    return Vocabulary(
        tokenizer_json=json.dumps({**full, "added_tokens": added}, ensure_ascii=False, separators=(",", ":")),
        vocab_size=len(tokens),
        eos_ids=_eos_ids(ids, [_stated_id(fields, name) for name in ("eos_token", "eot_token")]),
        chat_template=fields["chat_template"],
        template_tokens={name: tokens[i] for name in _TEMPLATE_TOKENS if (i := _stated_id(fields, name)) is not None},
    )


def _stated_id(fields: Mapping[str, Any], name: str) -> int | None:
    stated = fields.get(f"{name}_id")
    return stated if isinstance(stated, int) and 0 <= stated < len(fields["tokens"]) else None


def _added(token_id: int, content: str, kind: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, **flags, "special": kind == _CONTROL}


def _tokenizer_json(pre: str, vocab: Mapping[str, int], merges: list[str], path: Path) -> dict[str, Any]:
    normalizer, split = _split_rules(pre, path)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**byte_level, "use_regex": pre == "smollm"}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [merge.split(" ", 1) for merge in merges]},
    }


def _split_rules(pre: str, path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Normalizer and first splitting rule of a pre-tokenizer name."""
    if pre == "smollm":
        return None, {"type": "Digits", "individual_digits": True}
    if pre == "qwen2":
        split = {"type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated", "invert": False}
        return {"type": "NFC"}, split
    raise CheckpointRefused(f"{path} uses the pre-tokenizer {pre!r}; smollm and qwen2 are known")
