"""The prepare stage: sources into packed rows, on-policy prompts and held-out prompts, all as ids.

Runs on a CPU beside the data; what it writes is all a training machine needs besides the base weights. The same recipe
and data give the same files.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from quicksilver.errors import InvalidRequest
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.corpus import OverlapCheck, evaluation_texts
from quicksilver.training.formats import Formatter
from quicksilver.training.generate import PromptSet, prompt_set
from quicksilver.training.journal import Journal
from quicksilver.training.pack import Document, pack
from quicksilver.training.prepared_data import (
    EDIT_PROMPTS,
    EVAL_PROMPTS,
    FINALS,
    HELD,
    PROMPTS,
    QUESTIONS,
    TRAIN,
    Facts,
    write_finals,
    write_questions,
)
from quicksilver.training.proposals import EditPrompt, write_edit_prompts
from quicksilver.training.recipe import Data
from quicksilver.training.rows import ChatRow, Row, row_text
from quicksilver.training.sources import (
    DIVIDED,
    HELD_OUT,
    PROBLEMS,
    SOURCES,
    held_out_edits,
    held_out_rows,
    training_rows,
)

LONGEST_QUESTION = 400
# Text of questions that are left out: they list possible answers, or ask for the notation of a tool.
_NOT_OPEN = ("Options:", "toolformer")
# A source is read until it has this many times the rows of the recipe, then shuffled: files are ordered by package.
_CANDIDATES = 4


def prepare_data(data: Data, base: Path, folder: Path, journal: Journal) -> Facts:
    """Write all files into `folder`, in the ids of the base's tokenizer."""
    source = Path(data.source)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.load(data.tokenizer or base)
    tokenizer = tokenizer.with_reserved() if data.reserves_tokens else tokenizer
    formatter = Formatter(tokenizer, data.row_len)
    check = OverlapCheck(evaluation_texts(Path(data.evals)) if data.evals else ())
    journal.print_line("evaluation pack read")
    if unknown := sorted(set(data.rows) - set(SOURCES)):
        raise InvalidRequest(f"recipe.data.rows.{unknown[0]}: unknown source; known: {', '.join(sorted(SOURCES))}")
    collected = Collected(formatter)
    for share, part in zip(_shares(data), _read_sources(data, formatter, check), strict=True):
        collected.add(share.source, part)
        number = collected.documents_of[share.source]
        journal.print_line(f"{share.source}: {number} documents, {collected.num_tokens / 1e6:.1f} M tokens so far")
    write_questions(folder / QUESTIONS, list(_questions(data, source, check)))
    write_finals(folder / FINALS, _finals(data, source))
    if data.proposals:
        write_edit_prompts(folder / EDIT_PROMPTS, _edit_prompts(data, source, formatter))
    held = _held_out(data, source, formatter)
    return _write(collected, held, data, folder)


def _questions(data: Data, source: Path, check: OverlapCheck) -> Iterator[str]:
    """First user turns that ask something short and open."""
    for name, count in data.asks.items():
        for row in picked_rows(Share(name, count), source, data.seed):
            question = row.messages[0].content if isinstance(row, ChatRow) else ""
            is_open = not any(mark in question for mark in _NOT_OPEN)
            if 0 < len(question) <= LONGEST_QUESTION and is_open and not check.overlaps(question):
                yield question


def _finals(data: Data, source: Path) -> dict[str, str]:
    """The correct short answers of the word problems that the base answers in the generate stage."""
    rows = training_rows(PROBLEMS, source, data.seed) if PROBLEMS in data.rows else ()
    return {row.messages[0].content: row.messages[-1].content for row in rows if isinstance(row, ChatRow)}


def _edit_prompts(data: Data, source: Path, formatter: Formatter) -> list[EditPrompt]:
    """Requests for next edits that fit a row with their answer, drawn evenly from all records."""
    prompts = []
    for kind, row in held_out_edits(source, data.seed):
        prompt, document = formatter.prompt(row), next(formatter.documents(row), None)
        if prompt is not None and document is not None:
            expected = document.token_ids[len(prompt) :].tolist()
            prompts.append(EditPrompt(prompt, row.request.region, row.answer, kind, expected))
    random.Random(f"{data.seed}/proposals").shuffle(prompts)
    return prompts[: data.proposals]


@dataclass(frozen=True, slots=True)
class Share:
    """What one process reads of a source."""

    source: str
    count: int
    part: int = 0
    parts: int = 1
    skip: int = 0


def _shares(data: Data) -> list[Share]:
    """The shares of all sources, in the order of the recipe."""
    found = []
    for name, count in data.rows.items():
        parts = data.parts if name in DIVIDED else 1
        skip = -(-data.skip.get(name, 0) // parts)
        found += [Share(name, -(-count // parts), part, parts, skip) for part in range(parts)]
    return found


def picked_rows(share: Share, source: Path, seed: int) -> Iterator[Row]:
    """The rows of a share, drawn from a longer reading after the first `skip`; a count of 0 takes all."""
    rows = training_rows(share.source, source, seed, share.part, share.parts)
    if share.count == 0:
        return rows
    wanted = share.skip + share.count
    candidates = list(itertools.islice(rows, wanted * _CANDIDATES))
    random.Random(f"{seed}/pick/{share.source}").shuffle(candidates)
    return iter(candidates[share.skip : wanted])


@dataclass(slots=True)
class Part:
    """Documents and prompts of one share."""

    documents: list[Document] = field(default_factory=list)
    prompts: dict[str, list[list[int]]] = field(default_factory=dict)
    num_overlaps: int = 0


class Reader:
    """Turns rows into documents and prompts, one source at a time. Keeps nothing of a source after it was read."""

    def __init__(self, data: Data, formatter: Formatter, check: OverlapCheck) -> None:
        self._data, self._formatter, self._check = data, formatter, check

    def read(self, share: Share) -> Part:
        part = Part()
        folder, seed = Path(self._data.source), self._data.seed
        for row in picked_rows(share, folder, seed):
            if self._check.overlaps(row_text(row)):
                part.num_overlaps += 1
                continue
            documents = list(self._formatter.documents(row))
            part.documents += documents
            if row.domain in self._data.prompts:
                self._take_prompt(row, documents, part)
        return part

    def _take_prompt(self, row: Row, documents: list[Document], part: Part) -> None:
        # The prompt of a document is the text before its last answer. Only rows without a document are formatted again.
        prompt = documents[0].prompt() if documents else self._formatter.prompt(row)
        if prompt is not None and len(prompt) <= self._data.max_prompt_len:
            part.prompts.setdefault(row.domain, []).append(prompt)


def _read_sources(data: Data, formatter: Formatter, check: OverlapCheck) -> Iterator[Part]:
    """Parts in the recipe's order, read on all cores. Forked, so that word hashes mean the same everywhere."""
    with get_context("fork").Pool(initializer=_begin, initargs=(Reader(data, formatter, check),)) as pool:
        yield from pool.imap(_read, _shares(data))


def _begin(reader: Reader) -> None:
    global _reader
    _reader = reader


def _read(share: Share) -> Part:
    return _reader.read(share)


# Set in each process that reads sources.
_reader: Reader


class Collected:
    """Documents and prompts of all sources, with counts."""

    def __init__(self, formatter: Formatter) -> None:
        self.formatter = formatter
        self.documents: list[Document] = []
        self.prompts: dict[str, list[list[int]]] = {}
        self.documents_of: Counter[str] = Counter()
        self.num_tokens = self.num_overlaps = 0

    def add(self, name: str, part: Part) -> None:
        self.documents += part.documents
        self.documents_of[name] += len(part.documents)
        self.num_tokens += sum(len(document.token_ids) for document in part.documents)
        self.num_overlaps += part.num_overlaps
        for domain, prompts in part.prompts.items():
            self.prompts.setdefault(domain, []).extend(prompts)


def _held_out(data: Data, source: Path, formatter: Formatter) -> dict[str, list[tuple[list[int], Document | None]]]:
    """Per domain: prompts that fit, with the document of the right answer where there is one."""
    found: dict[str, list[tuple[list[int], Document | None]]] = {}
    for domain in HELD_OUT:
        kept = found.setdefault(domain, [])
        for row in held_out_rows(domain, source, data.seed):
            prompt = formatter.prompt(row)
            has_room = prompt is not None and len(prompt) <= data.row_len - 256
            if prompt is not None and has_room and (not isinstance(row, ChatRow) or row.messages):
                kept.append((prompt, next(formatter.documents(row), None)))
            if len(kept) == data.eval_prompts * 4:
                break
        random.Random(f"{data.seed}/eval/{domain}").shuffle(kept)
    return found


def _write(
    collected: Collected, held: dict[str, list[tuple[list[int], Document | None]]], data: Data, folder: Path
) -> Facts:
    tokenizer = collected.formatter.tokenizer
    end_id = collected.formatter.end_id
    rng = random.Random(data.seed)
    rng.shuffle(collected.documents)
    train = pack(collected.documents, data.row_len, end_id, tokenizer.vocab_size)
    train.save(folder / TRAIN)
    answers = [document for pairs in held.values() for _, document in pairs if document is not None]
    if answers:
        pack(answers, data.row_len, end_id, tokenizer.vocab_size).save(folder / HELD)
    domains = tuple(held)
    _prompt_set(collected, data, rng).save(folder / PROMPTS)
    asked = [(prompt, i) for i, d in enumerate(domains) for prompt, _ in held[d][: data.eval_prompts]]
    prompt_set([p for p, _ in asked], [i for _, i in asked]).save(folder / EVAL_PROMPTS)
    counts = {"tokens": collected.num_tokens, "overlaps": collected.num_overlaps}
    facts = Facts.of(collected.formatter, folder, train, dict(collected.documents_of), domains=domains, **counts)
    facts.save(folder)
    return facts


def _prompt_set(collected: Collected, data: Data, rng: random.Random) -> PromptSet:
    prompts: list[list[int]] = []
    for domain, count in data.prompts.items():
        found = collected.prompts.get(domain, [])
        unique = [list(ids) for ids in dict.fromkeys(map(tuple, found))]
        rng.shuffle(unique)
        prompts += unique[: count or None]
    num_answers = len(prompts)
    prompts += [collected.formatter.self_play_prompt()] * (num_answers // 20)
    ends = [1] * num_answers + [2] * (len(prompts) - num_answers)
    return prompt_set(prompts, [0] * len(prompts), ends)
