"""A toy task for smoke runs and tests: a tiny random model, and a small corpus that it memorises.

Ids only, no tokenizer. A document names a verse with one token and then repeats it. Skill and drafts can be learned in
seconds on a CPU and checked exactly.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from quicksilver.training.generate import PromptSet
from quicksilver.training.pack import Document, pack
from quicksilver.training.prepared_data import EVAL_PROMPTS, HELD, PROMPTS, TRAIN, Facts

PAD, OPEN, END, FIRST_NAME, FIRST_WORD = 0, 1, 2, 3, 20
NUM_VERSES, VERSE_LEN = 4, 14

TINY = ModelConfig(
    family="llama",
    num_layers=2,
    dim=32,
    ffn_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=96,
    context_len=256,
    tied_head=True,
)


def tiny_model(seed: int = 5) -> Transformer:
    """Random weights, small enough to train in seconds."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(TINY)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.08, generator=generator)
    return model


def verses(count: int) -> list[Document]:
    """`count` documents that cycle over the verses."""
    rng = np.random.default_rng(3)
    lines = rng.integers(FIRST_WORD, TINY.vocab_size, (NUM_VERSES, VERSE_LEN))
    documents = []
    for i in range(count):
        ids = np.concatenate([[OPEN, FIRST_NAME + i % NUM_VERSES], lines[i % NUM_VERSES], [END]])
        is_answer = np.arange(len(ids)) >= 2
        documents.append(Document(ids, is_answer, np.zeros_like(is_answer)))
    return documents


def verse_prompts() -> PromptSet:
    names = np.arange(FIRST_NAME, FIRST_NAME + NUM_VERSES)
    flat = np.stack([np.full(NUM_VERSES, OPEN), names], axis=1).flatten()
    ones = np.ones(NUM_VERSES, dtype=np.int64)
    return PromptSet(flat, np.arange(0, 2 * NUM_VERSES + 1, 2), ones, ones - 1)


def write_verses(folder: Path, row_len: int) -> Facts:
    """Write the files that a prepare stage would write."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = verses(256)
    rows = pack(documents, row_len, PAD, TINY.vocab_size)
    rows.save(folder / TRAIN)
    rows.save(folder / HELD)
    verse_prompts().save(folder / PROMPTS)
    verse_prompts().save(folder / EVAL_PROMPTS)
    facts = Facts(
        vocab_size=TINY.vocab_size,
        stop_ids=(END,),
        end_id=END,
        reserved={"open": OPEN, **{f"verse_{i}": FIRST_NAME + i for i in range(NUM_VERSES)}},
        domains=("verses",),
        documents={"verses": len(documents)},
        tokens=sum(len(d.token_ids) for d in documents),
        answer_tokens=int(rows.is_answer.sum()),
        rows=rows.num_rows,
        overlaps=0,
        sha256=hashlib.sha256((folder / TRAIN).read_bytes()).hexdigest(),
    )
    facts.save(folder)
    return facts
