"""Chat data from a larger open model: it answers our questions, and short, complete English answers become training
rows.

Answers come from the teacher in its own token ids. They are decoded to text and encoded for the student by the same
formatter as every other row.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.formats import Formatter
from quicksilver.training.generate import Generator, PromptSet, generated_rows, prompt_set
from quicksilver.training.journal import Journal
from quicksilver.training.network import Network
from quicksilver.training.pack import Document, PackedRows, documents_of, pack
from quicksilver.training.prepared_data import QUESTIONS, read_questions
from quicksilver.training.recipe import Recipe
from quicksilver.training.rows import exchange
from quicksilver.training.synthesis.questions import question_rows

SYSTEM = (
    "You are a helpful assistant. Answer in plain English, correctly and briefly: one to three short sentences, "
    "unless a list, a poem or code is asked for."
)
_MAX_CHARS = 600
_MAX_GRAM_REPEATS = 3
# Filters: mentions of the teacher's vendor, other scripts and apologies.
_UNWANTED = re.compile(
    r"qwen|alibaba|openai|language model|as an ai|i'm sorry|[^\x00-\u024f\u2000-\u22ff]", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Teaching:
    recipe: Recipe
    # Folder of the prepared questions.
    data: Path
    # The student, whose ids are written.
    base: Path
    teacher: Path


def distil_chat(run: Teaching, network: Network, journal: Journal) -> PackedRows:
    """Answers of the teacher that pass the filters, packed into rows of the recipe's length."""
    recipe = run.recipe
    teacher_tokenizer, tokenizer = Tokenizer.load(run.teacher), Tokenizer.load(run.base).with_reserved()
    if teacher_tokenizer.roles.turn_close is None:
        raise InvalidRequest(f"{run.teacher.name}: the teacher's tokenizer has no token that ends a turn")
    prompts = questions(recipe, read_questions(run.data / QUESTIONS), teacher_tokenizer)
    generator = Generator(network, prompts, recipe.distil.generate, teacher_tokenizer.roles.turn_close)
    journal.print_line(f"{prompts.num_prompts} questions")
    answered = generated_rows(generator, journal)
    formatter = Formatter(tokenizer, recipe.data.row_len)
    documents = list(distilled(answered, teacher_tokenizer, formatter))
    random.Random(recipe.data.seed).shuffle(documents)
    journal.print_line(f"{len(documents)} answers kept, {sum(len(d.token_ids) for d in documents) / 1e6:.2f} M tokens")
    for document in documents[:12]:
        journal.print_line(tokenizer.decode(document.token_ids.tolist())[-400:])
    return pack(documents, recipe.data.row_len, formatter.end_id, tokenizer.vocab_size)


def questions(recipe: Recipe, prepared: list[str], teacher: Tokenizer) -> PromptSet:
    template = ChatTemplate.for_tokenizer(teacher)
    rng = random.Random(recipe.data.seed)
    made = [row.messages[0].content for row in question_rows(recipe.distil.questions, rng)]
    asked = dict.fromkeys([*made, *prepared])
    prompts = [list(template.render((Message("system", SYSTEM), Message("user", text))).ids) for text in asked]
    return prompt_set(prompts, [0] * len(prompts))


def distilled(rows: PackedRows, teacher: Tokenizer, student: Formatter) -> Iterator[Document]:
    """Documents in the student's ids, one per question with an acceptable answer. Duplicate answers are dropped."""
    seen: set[str] = set()
    read = exchange_reader(teacher)
    for document in documents_of(rows):
        question, answer = read(document)
        if is_worth_learning(answer) and answer not in seen:
            seen.add(answer)
            yield from student.documents(exchange(question, answer))


def is_worth_learning(answer: str) -> bool:
    if not 1 < len(answer) <= _MAX_CHARS or _UNWANTED.search(answer):
        return False
    words = answer.split()
    grams = Counter(zip(words, words[1:], words[2:], strict=False))
    return max(grams.values(), default=0) < _MAX_GRAM_REPEATS


def exchange_reader(teacher: Tokenizer) -> Callable[[Document], tuple[str, str]]:
    """Split a document into question and answer. Both are empty if the teacher did not finish."""
    opens, closes = teacher.roles.turn_open, teacher.roles.turn_close

    def read(document: Document) -> tuple[str, str]:
        ids = document.token_ids
        starts, ends = np.flatnonzero(ids == opens), np.flatnonzero(ids == closes)
        if len(starts) < 2 or len(ends) < len(starts):
            return "", ""
        return turn(ids[starts[-2] + 1 : ends[-2]]), turn(ids[starts[-1] + 1 : ends[-1]])

    def turn(ids: npt.NDArray[np.integer]) -> str:
        """The text after the line that names the role."""
        return teacher.decode(ids.tolist()).partition("\n")[2].strip()

    return read
