"""Rows into documents: ids, which of them are answers, and which tokens of an edit decide it. Every prompt is written
by the functions that serving uses.

An answer ends with the token that ends it in serving. Rows that do not fit `max_len` give no document: a cut answer
would teach stopping anywhere. In a rewritten region a copied token is nearly certain once the edit is known, so it
teaches little. What counts is where the text departs from the region, where it comes back to it, and, in a region that
stays, every line's start.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from quicksilver.editing.prompts import edit_fence, edit_messages, edit_prompt, fim_prompt, fim_space
from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message, asks_to_think
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.pack import Document
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, Row, TextRow

# Ids, and whether they are an answer.
Piece = tuple[list[int], bool]


class Formatter:
    """Writes rows with one tokenizer, whose reserved roles are what the adapter learns."""

    def __init__(self, tokenizer: Tokenizer, max_len: int) -> None:
        self.tokenizer, self.max_len = tokenizer, max_len
        self._template = ChatTemplate.for_tokenizer(tokenizer)
        if tokenizer.roles.turn_close is None or tokenizer.roles.turn_open is None:
            raise InvalidRequest("training formats need a tokenizer with turn tokens")
        self.end_id: int = tokenizer.roles.turn_close
        self._open_id: int = tokenizer.roles.turn_open
        self._header = tokenizer.encode("assistant\n")

    def documents(self, row: Row) -> Iterator[Document]:
        """The documents of one row: none where it is too long or may not train, several for running text."""
        if isinstance(row, TextRow):
            ids = self.tokenizer.encode(row.text)
            for start in range(0, len(ids), self.max_len):
                yield _text_document(ids[start : start + self.max_len])
            return
        if isinstance(row, ChatRow) and row.is_prompt_only:
            return
        pieces = self._pieces(row)
        weigh = _with_context if isinstance(row, FimRow) else _document
        if 0 < sum(len(ids) for ids, _ in pieces) <= self.max_len and any(answers for _, answers in pieces):
            document = weigh(pieces)
            if isinstance(row, EditRow) and row.counts_copies_apart:
                document = self._with_copies_apart(document, row)
            yield document

    def prompt(self, row: Row) -> list[int] | None:
        """The ids after which the model writes its (last) answer."""
        if isinstance(row, TextRow):
            return None
        if isinstance(row, ChatRow):
            answers = [i for i, m in enumerate(row.messages) if m.role == "assistant"]
            turns = row.messages[: 1 if row.is_prompt_only else answers[-1]]
            return list(self._template.render(turns, row.tools, effort=row.effort).ids)
        return self._pieces(row)[0][0]

    def self_play_prompt(self) -> list[int]:
        """The template up to the user's first word."""
        ids = list(self._template.render((Message("user", ""),)).ids)
        opens = [i for i, token in enumerate(ids) if token == self._open_id]
        # The assistant's turn is the last one; the empty user turn comes before it, after a system turn if the
        # template adds one. The prompt ends after the header of the user turn.
        return ids[: ids.index(self.end_id, opens[-2])]

    def _pieces(self, row: Row) -> list[Piece]:
        if isinstance(row, ChatRow):
            return self._chat(row)
        if isinstance(row, FimRow):
            lead = fim_space(self.tokenizer, row.prefix)
            prompt = fim_prompt(self.tokenizer, row.prefix.removesuffix(lead), row.suffix)
            return [(prompt, False), self._answer(lead + row.middle)]
        if isinstance(row, EditRow) and self.tokenizer.roles.edit_open is None:
            prefill, stop = edit_fence(row.request)
            asked = [*self._template.render(edit_messages(row.request)).ids, *self.tokenizer.encode(prefill)]
            return [(asked, False), self._answer(row.answer + stop)]
        if isinstance(row, EditRow):
            return [(edit_prompt(self.tokenizer, row.request), False), self._answer(row.answer)]
        assert isinstance(row, PlainRow)
        return [(self.tokenizer.encode(row.prompt), False), self._answer(row.answer)]

    def _with_copies_apart(self, document: Document, row: EditRow) -> Document:
        """The same document, whose copied tokens are weighed as text."""
        ids = document.token_ids[document.prompt_len :].tolist()
        decides = deciding_tokens(row.request.region, row.answer, [len(self.tokenizer.token_bytes(i)) for i in ids])
        is_text = np.zeros_like(document.is_text)
        is_text[document.prompt_len :] = [not counts for counts in decides]
        return replace(document, is_text=is_text)

    def _answer(self, text: str) -> Piece:
        return [*self.tokenizer.encode(text), self.end_id], True

    def _chat(self, row: ChatRow) -> list[Piece]:
        """The conversation. An answer is the text between an assistant's header and the end of its turn."""
        ids = list(self._template.render(row.messages, row.tools, effort=row.effort, add_generation_prompt=False).ids)
        pieces: list[Piece] = []
        done = 0
        opening = [self._open_id, *self._header]
        for start in [i for i, token in enumerate(ids) if token == self._open_id]:
            begin = start + len(opening)
            if ids[start:begin] != opening:
                continue
            if asks_to_think(row.effort) and ids[begin] == self.tokenizer.roles.think_open:
                begin = self._thoughts_begin(row, ids, begin)
            end = ids.index(self.end_id, begin) + 1
            pieces += [(ids[done:begin], False), (ids[begin:end], True)]
            done = end
        return pieces

    def _thoughts_begin(self, row: ChatRow, ids: list[int], begin: int) -> int:
        """The index after the start of the thinking in the prompt: its token, and in some templates a line."""
        asked = list(self._template.render(row.messages[:1], effort=row.effort).ids)
        opening = asked[len(asked) - 1 - asked[::-1].index(ids[begin]) :]
        return begin + (len(opening) if ids[begin : begin + len(opening)] == opening else 1)


def _document(pieces: list[Piece]) -> Document:
    token_ids = np.concatenate([np.asarray(ids, dtype=np.int32) for ids, _ in pieces])
    is_answer = np.concatenate([np.full(len(ids), answers) for ids, answers in pieces])
    is_answer[0] = False
    return Document(token_ids, is_answer, np.zeros_like(is_answer))


def _text_document(ids: list[int]) -> Document:
    document = _document([(ids, True)])
    return replace(document, is_text=np.ones_like(document.is_answer))


def _with_context(pieces: list[Piece]) -> Document:
    """The code around a gap is worth learning too: an answer alone is a few tokens of many."""
    document = _document(pieces)
    is_learned = np.ones_like(document.is_answer)
    is_learned[0] = False
    return replace(document, is_answer=is_learned, is_text=~document.is_answer)


def deciding_tokens(region: str, answer: str, token_lens: Sequence[int]) -> list[bool]:
    """For each token of the answer, given by its length in bytes: whether it is a decision. Tokens past its end are."""
    lines = answer.split("\n")
    is_new, comes_back = _line_marks(region.split("\n"), lines)
    starts = [0, *accumulate(len(line.encode()) + 1 for line in lines[:-1])]
    num_bytes = len(answer.encode())
    decides, at, last_line = [], 0, -1
    for length in token_lens:
        line, reached = bisect_right(starts, at) - 1, bisect_right(starts, at + length) - 1
        is_first = line != last_line
        # A line break before a new line decides too: the text could have ended there.
        decides.append(at >= num_bytes or is_new[line] or is_new[reached] or (is_first and comes_back[line]))
        at, last_line = at + length, line
    return decides


def _line_marks(old: list[str], new: list[str]) -> tuple[list[bool], list[bool]]:
    """Per new line: whether it is not a copy, and whether its first token decides although it is one."""
    if old == new:
        return [False] * len(new), [True] * len(new)
    is_new, comes_back = [False] * len(new), [False] * len(new)
    is_after_change = False
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            comes_back[start] = is_after_change
        else:
            is_new[start:end] = [True] * (end - start)
        is_after_change = tag != "equal"
    return is_new, comes_back
