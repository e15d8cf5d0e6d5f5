"""Rows of a fine-tuning file -> examples: token ids with the answer marked, checked for length and overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quicksilver.errors import InvalidRequest
from quicksilver.training.corpus import GRAM_LEN, OverlapCheck
from quicksilver.training.formats import Formatter
from quicksilver.training.pack import Document
from quicksilver.training.rows import ChatRow, Row, TextRow, row_text
from quicksilver.training.service.faults import Faults
from quicksilver.training.service.rows import MAX_ROWS, TuningRow, read_rows

MIN_EXAMPLES = 10
MAX_EXAMPLES = MAX_ROWS


@dataclass(frozen=True, slots=True)
class Example:
    """One document to learn. Of a pair, `rejected` is the answer to avoid; of a judged answer, `label` and `weight`."""

    document: Document
    rejected: Document | None = None
    label: bool = True
    weight: float = 1.0

    @property
    def num_tokens(self) -> int:
        other = 0 if self.rejected is None else len(self.rejected.token_ids)
        return len(self.document.token_ids) + other


def read_examples(
    content: bytes, method: str, formatter: Formatter, check: OverlapCheck, param: str, min_examples: int = MIN_EXAMPLES
) -> list[Example]:
    """All examples of a file, in its order. Raises DataRefused with the first faults."""
    faults = Faults()
    rows = read_rows(content, method, faults)
    examples = []
    for row in rows:
        if check.overlaps(_whole_text(row)):
            message = f"shares {GRAM_LEN} words with an evaluation set"
            faults.add(row.line, "", "training_data_matches_eval", message)
            continue
        found = list(_examples(row, formatter))
        if not found:
            faults.add(row.line, "", "example_too_long", f"longer than {formatter.max_len} tokens")
        examples += found
        if len(examples) > MAX_EXAMPLES:
            # Running text becomes several examples.
            faults.add(row.line, "", "file_too_large", f"more than {MAX_EXAMPLES} examples; divide the file")
            break
    if not faults.count:
        _check_file(examples, method, faults, min_examples)
    faults.require_none(param)
    return examples


def _check_file(examples: Sequence[Example], method: str, faults: Faults, min_examples: int) -> None:
    if len(examples) < min_examples:
        faults.add(0, "", "too_few_examples", f"{len(examples)} examples; at least {min_examples} are needed")
    elif method == "kto" and len({example.label for example in examples}) < 2:
        faults.add(0, "/label", "invalid_row", "both labels are needed, true and false")


def _whole_text(row: TuningRow) -> str:
    return row_text(row.row) if row.rejected is None else f"{row_text(row.row)}\n{row_text(row.rejected)}"


def _examples(row: TuningRow, formatter: Formatter) -> Iterator[Example]:
    """None where the row is too long; several for running text."""
    is_preference = row.rejected is not None or row.label is not None
    for document in formatter.documents(row.row):
        chosen = _last_answer(document) if is_preference else _answers(document, row.row, row.learned)
        if row.rejected is None:
            yield Example(chosen, label=row.label is not False, weight=row.weight)
            continue
        other = next(formatter.documents(row.rejected), None)
        if other is not None:
            yield Example(chosen, _last_answer(other))


def _answers(document: Document, row: Row, learned: tuple[bool, ...]) -> Document:
    """The document whose loss is on its answers alone: of running text everything, of a chat the learned turns."""
    if isinstance(row, TextRow):
        return _marked(document, document.is_answer)
    if isinstance(row, ChatRow):
        return _marked(document, _learned_turns(document.is_answer, learned))
    return _last_answer(document)


def _learned_turns(is_answer: npt.NDArray[np.bool_], learned: tuple[bool, ...]) -> npt.NDArray[np.bool_]:
    if all(learned):
        return is_answer
    starts = is_answer & ~np.concatenate(([False], is_answer[:-1]))
    turn = np.cumsum(starts) - 1
    if turn[-1] + 1 != len(learned):
        raise InvalidRequest("the chat template leaves out assistant turns; give every one of them the weight 1")
    return is_answer & np.array(learned)[turn.clip(min=0)]


def _last_answer(document: Document) -> Document:
    return _marked(document, np.arange(len(document.token_ids)) >= document.prompt_len)


def _marked(document: Document, is_answer: npt.NDArray[np.bool_]) -> Document:
    return replace(document, is_answer=is_answer, is_text=np.zeros_like(is_answer))


def with_answer_of(document: Document, other: Document) -> Document:
    """The prompt of one document with the answer of another."""
    ids = np.concatenate([document.token_ids[: document.prompt_len], other.token_ids[other.prompt_len :]])
    is_answer = np.arange(len(ids)) >= document.prompt_len
    return Document(ids, is_answer, np.zeros_like(is_answer))
