"""Made-up data folders, and a client whose answers a test defines."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quicksilver.core import Request, ScoreRequest, Scores
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.fakes import ByteTokenizer, tiny_tokenizer

# A package that the hash holds out from training, and one that it does not.
HELD_OUT, TRAINED = "rsa", "numpy"


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def write_pack(data: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    write_rows(data / "eval" / "eval_pack.jsonl.xz", rows)
    return data


def skilled_writer() -> PromptBuilder:
    return _writer(tiny_tokenizer())


def bare_writer() -> PromptBuilder:
    return _writer(ByteTokenizer())


def _writer(tokenizer: Tokenizer) -> PromptBuilder:
    return PromptBuilder(tokenizer, ChatTemplate.own(tokenizer), 4096)


def speaking(answer: Callable[[str], str]) -> FakeEngine:
    """A client that answers each prompt with a given text, one byte per token."""
    tokenizer = tiny_tokenizer()

    def script(request: Request) -> list[Step]:
        return spoken(request, tokenizer.encode(answer(tokenizer.decode(request.prompt_ids))))

    return FakeEngine(script, likes_shortest)


def likes_shortest(request: ScoreRequest) -> Scores:
    """All tokens are equally likely, so the shortest continuation has the highest likelihood."""
    return Scores(tuple((-1.0,) * len(ids) for ids in request.continuations))
