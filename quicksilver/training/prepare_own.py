"""The prepare stage for a user's own files (`[data.files]` of a recipe): packed rows and held-out rows, as ids."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from quicksilver.errors import InvalidRequest
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.formats import Formatter
from quicksilver.training.generate import prompt_set
from quicksilver.training.journal import Journal
from quicksilver.training.own_rows import read_own_rows
from quicksilver.training.pack import Document, pack
from quicksilver.training.prepared_data import EVAL_PROMPTS, HELD, PROMPTS, TRAIN, Facts
from quicksilver.training.recipe import Data

DOMAIN = "own"
# One row of this many is held out, at most `eval_prompts` rows.
HELD_OUT_EVERY = 10


@dataclass(slots=True)
class OwnData:
    """Documents and prompts of all files."""

    train: list[Document] = field(default_factory=list)
    held: list[Document] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    held_prompts: list[list[int]] = field(default_factory=list)
    documents_of: dict[str, int] = field(default_factory=dict)


def prepare_own_data(data: Data, base: Path, folder: Path, journal: Journal) -> Facts:
    """Write all files into `folder`, in the ids of the base's tokenizer. The facts are written last."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.load(data.tokenizer or base)
    tokenizer = tokenizer.with_reserved() if data.reserves_tokens else tokenizer
    formatter = Formatter(tokenizer, data.row_len)
    found = OwnData()
    for name, file in data.files.items():
        _read_file(name, Path(file), data, formatter, found, journal)
    random.Random(data.seed).shuffle(found.train)
    return _write(found, data, formatter, folder)


def _read_file(name: str, path: Path, data: Data, formatter: Formatter, found: OwnData, journal: Journal) -> None:
    rows = read_own_rows(path)
    order = list(range(len(rows)))
    random.Random(f"{data.seed}/own/{name}").shuffle(order)
    held_out = set(order[: min(len(rows) // HELD_OUT_EVERY, data.eval_prompts)])
    too_long: list[int] = []
    for index, own in enumerate(rows):
        documents = list(formatter.documents(own.row))
        if not documents:
            too_long.append(own.line)
            continue
        prompt = formatter.prompt(own.row)
        is_held = index in held_out
        (found.held if is_held else found.train).extend(documents)
        if prompt is not None and len(prompt) <= data.max_prompt_len:
            (found.held_prompts if is_held else found.prompts).append(prompt)
    used = len(rows) - len(too_long)
    found.documents_of[name] = used
    if not used:
        raise InvalidRequest(f"{path}: no row fits {data.row_len} tokens; raise data.row_len")
    journal.print_line(f"{name}: {used} rows of {path}, one of {HELD_OUT_EVERY} held out")
    if too_long:
        listed = ", ".join(map(str, too_long[:8])) + (" …" if len(too_long) > 8 else "")
        journal.print_line(f"{name}: left out {len(too_long)} rows longer than {data.row_len} tokens (lines {listed})")


def _write(found: OwnData, data: Data, formatter: Formatter, folder: Path) -> Facts:
    tokenizer, end_id = formatter.tokenizer, formatter.end_id
    train = pack(found.train, data.row_len, end_id, tokenizer.vocab_size)
    train.save(folder / TRAIN)
    if found.held:
        pack(found.held, data.row_len, end_id, tokenizer.vocab_size).save(folder / HELD)
    prompts = found.prompts or found.held_prompts or [formatter.self_play_prompt()]
    held = found.held_prompts or prompts[:1]
    prompt_set(prompts, [0] * len(prompts)).save(folder / PROMPTS)
    prompt_set(held, [0] * len(held)).save(folder / EVAL_PROMPTS)
    num_tokens = sum(len(document.token_ids) for document in found.train)
    facts = Facts.of(formatter, folder, train, found.documents_of, domains=(DOMAIN,), tokens=num_tokens, overlaps=0)
    facts.save(folder)
    return facts
