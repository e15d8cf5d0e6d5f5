"""Text <-> token ids with the `tokenizers` package, and the roles of special tokens.

`encode` is for untrusted text and never returns a special id. `encode_markup` is for trusted text, of this package
or of the checkpoint's template, in which special tokens are written out. Immutable; safe to share between threads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import tokenizers

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text.special_tokens import Specials, find_roles, reserve_roles, reserved_for
from quicksilver.text.vocabulary import Vocabulary, read_directory, read_gguf
from quicksilver.text.word_encoder import WordEncoder

_SHORT_TEXT = 256


class Tokenizer:
    """A checkpoint's tokenizer. Ids are those of the checkpoint; nothing here adds or moves a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        full = _load(vocabulary.tokenizer_json)
        self._added = full.get_added_tokens_decoder()
        # Every added token by its spelling; `encode` returns none of them.
        self.special_tokens: Mapping[str, int] = {token.content: i for i, token in self._added.items()}
        self._plain = _without_added_tokens(full)
        self._words = WordEncoder(self._plain, _LETTERS)
        self._is_byte_level = full.token_to_id("Ġ") is not None
        self._pieces: dict[int, bytes] = {}
        # Ids by role: those of the checkpoint, unless `with_roles` or `with_reserved` changed them.
        self.roles = find_roles(self.special_tokens, vocabulary.eos_ids)

    @classmethod
    def from_dir(cls, folder: str | Path) -> Tokenizer:
        return cls(read_directory(Path(folder)))

    @classmethod
    def from_gguf(cls, path: str | Path) -> Tokenizer:
        return cls(read_gguf(Path(path)))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a GGUF file, or of a directory with tokenizer files or a single GGUF file."""
        path = Path(path)
        ggufs = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
        is_gguf = len(ggufs) == 1 and not (path / "tokenizer.json").is_file()
        return cls.from_gguf(ggufs[0]) if is_gguf else cls.from_dir(path)

    @classmethod
    def for_model(cls, weights: str | Path, skill: str | Path | None) -> Tokenizer:
        """Like `load`. With a skill adapter, spare tokens get the roles that the base lacks, as in its training."""
        tokenizer = cls.load(weights)
        return tokenizer.with_reserved() if skill else tokenizer

    def with_roles(self, ids: Mapping[str, int]) -> Tokenizer:
        """The same tokenizer with roles overridden, as an adapter's metadata states them."""
        return self.replace_roles(self.roles.with_ids(ids))

    def with_reserved(self) -> Tokenizer:
        """The same tokenizer with spare tokens in the roles it lacks: for training and weights trained with them."""
        return self.replace_roles(reserve_roles(self.roles, self.special_tokens))

    def replace_roles(self, roles: Specials) -> Tokenizer:
        """The same tokenizer with exactly these roles."""
        other = copy.copy(self)
        other.roles = roles
        return other

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer as data."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.roles.eos_ids

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's own template source."""
        return self._vocabulary.chat_template

    @property
    def template_tokens(self) -> Mapping[str, str]:
        """The variables bos_token, eos_token and the like that templates name."""
        return self._vocabulary.template_tokens

    @cached_property
    def markup_tokens(self) -> tuple[str, ...]:
        """Special tokens that can be spelled in trusted text, longest first; blank and one-letter ones cannot."""
        names = (name for name in self.special_tokens if len(name) > 1 and name.strip())
        return tuple(sorted(names, key=lambda name: (-len(name), name)))

    @cached_property
    def mute_ids(self) -> frozenset[int]:
        """Special tokens that decode to nothing."""
        return frozenset(i for i in self.special_tokens.values() if not self.token_bytes(i))

    @cached_property
    def reserved_family(self) -> str | None:
        """The family in `special_tokens.RESERVED` that the tokenizer belongs to, if any, such as smollm2."""
        entry = reserved_for(self.special_tokens)
        return entry.name if entry else None

    def special_id(self, name: str) -> int:
        """The id of a special token by its spelling; KeyError where there is none."""
        return self.special_tokens[name]

    def to_json(self) -> str:
        """A complete tokenizer.json, as grammar libraries read it."""
        return self._vocabulary.tokenizer_json

    def encode(self, text: str) -> list[int]:
        """Ids of text from outside: a special token spelled in it stays plain text.

        A character whose bytes the vocabulary lacks is left out; nano lacks six control characters and planes 4 to 11.
        """
        try:
            is_short = len(text) < _SHORT_TEXT  # the library takes as long for it
            ids = self._plain.encode(text, add_special_tokens=False).ids if is_short else self._words.encode(text)
        except (UnicodeEncodeError, TypeError):  # which of the two depends on the library's version
            raise InvalidRequest("text holds a lone surrogate, which no encoding can carry") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library: no Exception, and not importable
                raise
            raise InvalidRequest("the patterns of this model's tokenizer give up on the text") from None
        if self._added.keys().isdisjoint(ids):
            return ids
        # A vocabulary that lists a special token among its words can spell it by accident; single characters cannot.
        return [i for char in text for i in self._plain.encode(char, add_special_tokens=False).ids]

    def prepare(self, num_threads: int = 1) -> None:
        """For a process that encodes many long texts: takes 70 ms and 6 MB. `num_threads`: those of the library."""
        self._words.prepare(num_threads)

    def encode_markup(self, markup: str) -> list[int]:
        """Ids of trusted text: special tokens spelled in it become their ids."""
        ids: list[int] = []
        for part in self.split_markup(markup):
            ids += [part] if isinstance(part, int) else self.encode(part)
        return ids

    def split_markup(self, markup: str) -> Iterator[int | str]:
        """Trusted text as special ids and the plain text between them."""
        end = 0
        for match in self._special_pattern.finditer(markup):
            if match.start() > end:
                yield markup[end : match.start()]
            yield self.special_tokens[match[0] if match[0] in self.special_tokens else match[0].strip()]
            end = match.end()
        if end < len(markup):
            yield markup[end:]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens have none. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for: empty for special tokens and ids without a token."""
        if (piece := self._pieces.get(token_id)) is None:
            piece = self._pieces[token_id] = self._bytes_of(token_id)
        return piece

    def token_text(self, token_id: int) -> str:
        """One token for showing: special tokens by their spelling, broken UTF-8 with U+FFFD."""
        if token := self._added.get(token_id):
            return token.content
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _bytes_of(self, token_id: int) -> bytes:
        if token := self._added.get(token_id):
            return b"" if token.special else token.content.encode()
        name = self._plain.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if name is None:
            return b""
        return _from_byte_alphabet(name) if self._is_byte_level else _from_sentence_piece(name)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        tokens = (self._added[self.special_tokens[name]] for name in self.markup_tokens)
        spaced = (("\\s*" * t.lstrip) + re.escape(t.content) + ("\\s*" * t.rstrip) for t in tokens)
        return re.compile("|".join(spaced) or "(?!)")


def _load(tokenizer_json: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointRefused(f"tokenizer.json cannot be read: {error}") from error


def _without_added_tokens(full: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = full.pre_tokenizer
    return plain


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: visible Latin-1 stands for itself, the rest starts at U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()
_LETTERS = {byte: letter for letter, byte in _ALPHABET.items()}


def _from_byte_alphabet(name: str) -> bytes:
    return bytes(_ALPHABET[char] for char in name if char in _ALPHABET)


def _from_sentence_piece(name: str) -> bytes:
    if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
        return bytes([int(match[1], 16)])
    return name.replace("▁", " ").encode()
