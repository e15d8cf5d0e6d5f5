"""Small stand-ins shared by tests of all packages. They run real code on tiny data."""

from __future__ import annotations

import json
from typing import Any

from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary

# The 17 special tokens of nano's tokenizer, in order: ids 0 to 16.
SPECIAL_NAMES = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"),
    *("<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>"),
    *("<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>"),
)


def byte_characters() -> list[str]:
    """The byte-level alphabet, in byte order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def tokenizer_json(names: tuple[str, ...] = SPECIAL_NAMES) -> dict[str, Any]:
    """A byte-level tokenizer.json without merges: the named special tokens first, then one token a byte."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocab = {name: i for i, name in enumerate((*names, *byte_characters()))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **flags} for i, name in enumerate(names)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


class ByteTokenizer(Tokenizer):
    """The special tokens of nano and one token per byte: 273 ids, without files. Roles are those of a bare
    checkpoint."""

    def __init__(self) -> None:
        text = json.dumps(tokenizer_json())
        super().__init__(Vocabulary(text, vocab_size=273, eos_ids=(2, 0)))


def tiny_tokenizer() -> Tokenizer:
    """A `ByteTokenizer` for weights that were trained on the reserved tokens: FIM, edits, tools, thinking."""
    return ByteTokenizer().with_reserved()
