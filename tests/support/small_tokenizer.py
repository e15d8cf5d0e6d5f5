"""A complete tokenizer in a few lines: one token per byte, followed by the usual special tokens."""

from __future__ import annotations

import json
from functools import cache

from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|mask|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
)
VOCAB_SIZE = 512


@cache
def small_tokenizer(specials: tuple[str, ...] = SPECIALS) -> Tokenizer:
    vocab = {letter: byte for byte, letter in enumerate(_letters())}
    added = [_added(256 + i, name) for i, name in enumerate(specials)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    full = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    end_ids = (256 + specials.index("<|im_end|>"), 256)
    return Tokenizer(Vocabulary(json.dumps(full), VOCAB_SIZE, end_ids))


def _letters() -> list[str]:
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def _added(token_id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}
