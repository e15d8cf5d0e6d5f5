"""Output of the prepare stage: file names, and the facts that later stages need instead of a tokenizer."""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quicksilver.errors import InvalidRequest

if TYPE_CHECKING:
    from quicksilver.training.formats import Formatter
    from quicksilver.training.pack import PackedRows

TRAIN, HELD, PROMPTS, EVAL_PROMPTS, QUESTIONS, FINALS, EDIT_PROMPTS, FACTS = (
    "train.safetensors.xz",
    "heldout.safetensors.xz",
    "prompts.safetensors.xz",
    "eval_prompts.safetensors.xz",
    "questions.json.xz",
    "finals.json.xz",
    "edit_prompts.json.xz",
    "facts.json",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the tokenizer and the data that later stages need, stored as JSON."""

    vocab_size: int
    stop_ids: tuple[int, ...]
    end_id: int
    # Role -> id of the tokens whose embeddings the skill adapter trains.
    reserved: dict[str, int]
    domains: tuple[str, ...]
    documents: dict[str, int]
    tokens: int
    answer_tokens: int
    rows: int
    # Rows dropped because they share 13 words with an evaluation.
    overlaps: int
    # Hash of the packed training rows.
    sha256: str

    @classmethod
    def of(
        cls, formatter: Formatter, folder: Path, train: PackedRows, documents: dict[str, int], **others: Any
    ) -> Facts:
        """Of the rows in `folder`. `others` are the fields that do not follow from the tokenizer and the rows."""
        roles = dict(formatter.tokenizer.roles.named())
        return cls(
            vocab_size=formatter.tokenizer.vocab_size,
            stop_ids=formatter.tokenizer.eos_ids,
            end_id=formatter.end_id,
            reserved={name: token_id for name, token_id in roles.items() if name not in ("turn_open", "turn_close")},
            documents=documents,
            answer_tokens=int(train.is_answer.sum()),
            rows=train.num_rows,
            sha256=hashlib.sha256((folder / TRAIN).read_bytes()).hexdigest(),
            **others,
        )

    def save(self, folder: Path) -> None:
        (folder / FACTS).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, folder: Path) -> Facts:
        try:
            fields = json.loads((folder / FACTS).read_text())
        except OSError as error:
            raise InvalidRequest(f"no prepared data in {folder}: run the prepare stage first") from error
        tuples = {name: tuple(fields[name]) for name in ("stop_ids", "domains")}
        return cls(**{**fields, **tuples})


def write_questions(path: Path, questions: list[str]) -> None:
    path.write_bytes(lzma.compress(json.dumps(questions).encode()))


def read_questions(path: Path) -> list[str]:
    """Return the prepared questions, or an empty list if there are none."""
    return [str(text) for text in json.loads(lzma.decompress(path.read_bytes()))] if path.exists() else []


def write_finals(path: Path, finals: dict[str, str]) -> None:
    path.write_bytes(lzma.compress(json.dumps(finals).encode()))


def read_finals(path: Path) -> dict[str, str]:
    """Short right answers by question; none where the data was prepared without any."""
    found: dict[str, str] = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}
    return found
