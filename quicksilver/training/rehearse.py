"""Rehearsal: answers of the base itself as training data of the skill adapter, so that its other abilities stay.

Answers come from the generate stage. Those to word problems are kept if they reach the right number. Most of them then
become reasoning: the steps that the base writes are the thinking section before a short answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping

from quicksilver.training.distil import exchange_reader
from quicksilver.training.formats import Formatter
from quicksilver.training.pack import Document, PackedRows, documents_of, pack
from quicksilver.training.synthesis.facts import thought

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_THOUGHT_SHARE = 0.65


def rehearsal_rows(rows: PackedRows, finals: Mapping[str, str], formatter: Formatter, seed: int) -> PackedRows:
    """Generated rows, filtered and packed again to the formatter's row length. finals: question -> short answer."""
    documents = list(rehearsed(rows, finals, formatter, random.Random(seed)))
    return pack(documents, formatter.max_len, formatter.end_id, formatter.tokenizer.vocab_size)


def rehearsed(
    rows: PackedRows, finals: Mapping[str, str], formatter: Formatter, rng: random.Random
) -> Iterator[Document]:
    """Finished answers, in order; wrong ones to word problems are left out."""
    read = exchange_reader(formatter.tokenizer)
    for document in documents_of(rows):
        if document.token_ids[-1] != formatter.end_id:
            continue
        question, answer = read(document)
        final = finals.get(question)
        if final is None:
            yield document
        elif last_number(answer) == last_number(final):
            effort = rng.choice(("medium", "high"))
            is_thought = rng.random() < _THOUGHT_SHARE
            yield from formatter.documents(thought(question, answer, final, effort)) if is_thought else (document,)


def last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
