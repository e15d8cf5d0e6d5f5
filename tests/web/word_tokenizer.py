"""A tokenizer with word-like tokens, so that the page looks as it does with a real model.

Byte-level BPE, trained on the texts of the scripted engine. Other text falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.small_tokenizer import SPECIALS, VOCAB_SIZE


def word_tokenizer(texts: Sequence[str]) -> Tokenizer:
    full = tokenizers.Tokenizer(BPE())
    full.pre_tokenizer = ByteLevel(add_prefix_space=False)
    full.decoder = tokenizers.decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    size = VOCAB_SIZE - len(SPECIALS)
    full.train_from_iterator(texts, BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    full.add_special_tokens(list(SPECIALS))
    end_ids = tuple(full.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    return Tokenizer(Vocabulary(full.to_str(), VOCAB_SIZE, end_ids))
