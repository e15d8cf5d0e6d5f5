"""Decision bodies -> a ReplyPlan with one DecisionRequest: all questions as branches after one prefix.

The tokens of the input and of all questions are charged as input, and one output token for each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from quicksilver.core import DecodeParams, EngineClient, Request, ScoreRequest, Scores, Usage
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.endpoints.decisions.question import (
    Option,
    Question,
    QuestionKind,
    QuestionWriter,
    WrittenQuestion,
    write_input,
)
from quicksilver.server.endpoints.decisions.wire import (
    ChoiceQuestion,
    DecisionBody,
    InputCall,
    InputContent,
    InputItem,
    InputJson,
    InputMessage,
    InputText,
    NamedChoiceQuestion,
    NamedQuestion,
    NoulQuestion,
    PredicateQuestion,
    SystemOneBody,
    TypedQuestion,
)
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan, plan_reply
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, Decided, Finished
from quicksilver.text.tokenizer import Tokenizer

# A longer question is scored after a prompt that contains it: a branch has to fit into one forward. An engine with
# fewer rows for scoring lowers the limit.
MAX_BRANCH_TOKENS = 128
# Options of all questions of one request.
MAX_TOTAL_OPTIONS = 4096
# Tokens of the questions of one scoring request.
MAX_REQUEST_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Branch:
    """A question in token ids: its text, and the first token of each label."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecisionRequest(AnswerRequest):
    """The prompt of the request is the input that all branches follow."""

    branches: tuple[Branch, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids) + sum(len(branch.ids) for branch in self.branches)

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        logprobs: dict[int, tuple[float, ...]] = {}
        used: list[Usage] = []
        max_tokens = min(MAX_BRANCH_TOKENS, engine.info.score_pass_rows)
        for number, group in enumerate(_groups(self.branches, max_tokens)):
            is_long = len(self.branches[group[0]].ids) > max_tokens
            scores = await engine.score(self._score_request(number, group, is_long))
            logprobs |= _by_branch(group, scores, is_long)
            used.append(scores.usage)
        yield Decided(tuple(logprobs[i] for i in range(len(self.branches))))
        usage = Usage(
            self.num_prompt_tokens,
            used[0].cached_tokens,
            len(self.branches),
            forwards=sum(each.forwards for each in used),
            rows=sum(each.rows for each in used),
        )
        yield Finished(usage=usage)

    def _score_request(self, number: int, group: Sequence[int], is_long: bool) -> ScoreRequest:
        name, prompt, tenant = f"{self.request.id}/{number}", self.request.prompt_ids, self.request.tenant
        branches = [self.branches[i] for i in group]
        if is_long:
            (branch,) = branches
            return ScoreRequest(name, (*prompt, *branch.ids), tuple((label,) for label in branch.labels), tenant)
        return score_request(name, prompt, branches, tenant)


def score_request(name: str, prompt: tuple[int, ...], branches: Sequence[Branch], tenant: str = "") -> ScoreRequest:
    """The labels of all branches after one prompt."""
    shared = _common_start([branch.ids for branch in branches])
    continuations = tuple(branch.ids[len(shared) :] for branch in branches)
    next_tokens = tuple(branch.labels for branch in branches)
    return ScoreRequest(name, (*prompt, *shared), continuations, tenant, next_tokens)


def _common_start(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens that several rows begin with, which are computed once. At least one token of each row is left."""
    if len(rows) == 1:
        return ()
    first, last = min(rows), max(rows)
    num_equal = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: min(num_equal, min(map(len, rows)) - 1)]


def _groups(branches: Sequence[Branch], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the branches of each scoring request: those of at most `max_tokens` together, longer ones alone and
    last."""
    group, num_tokens = list[int](), 0
    for i, branch in enumerate(branches):
        if len(branch.ids) > max_tokens:
            continue
        if group and num_tokens + len(branch.ids) > MAX_REQUEST_TOKENS:
            yield group
            group, num_tokens = [], 0
        group.append(i)
        num_tokens += len(branch.ids)
    if group:
        yield group
    yield from ([i] for i, branch in enumerate(branches) if len(branch.ids) > max_tokens)


def _by_branch(group: Sequence[int], scores: Scores, is_long: bool) -> dict[int, tuple[float, ...]]:
    if is_long:
        return {group[0]: tuple(logprob for (logprob,) in scores.logprobs)}
    return dict(zip(group, scores.logprobs, strict=True))


async def plan_decisions(body: DecisionBody, services: Services, tenant: str) -> ReplyPlan:
    text = body.input if isinstance(body.input, str) else "\n".join(map(write_item, body.input))
    questions = [read_typed(question) for question in body.questions]
    _refuse_repeated(body)
    return await _plan(body, text, questions, services, tenant)


async def plan_system_one(body: SystemOneBody, services: Services, tenant: str) -> ReplyPlan:
    questions = [read_named(name, question) for name, question in body.questions.items()]
    return await _plan(body, write_content(body.state), questions, services, tenant)


async def _plan(
    body: DecisionBody | SystemOneBody, text: str, questions: Sequence[Question], services: Services, tenant: str
) -> ReplyPlan:
    num_options = sum(len(question.options) for question in questions)
    if num_options > MAX_TOTAL_OPTIONS:
        raise InvalidRequest(f"questions: at most {MAX_TOTAL_OPTIONS} options together", param="questions")
    services.prompts.check_length(len(text) + sum(question.num_chars for question in questions), "input")
    written = await asyncio.to_thread(_write, questions, services)
    texts = [write_input(text), *(one.text for one in written)]
    prefix, *ids = await services.prompts.encode(texts, tenant, "input")
    branches = tuple(Branch(tokens, one.label_ids) for one, tokens in zip(written, ids, strict=True))
    _check_fits(prefix, branches, services)
    params = DecodeParams(max_new_tokens=len(branches))
    request = DecisionRequest(Request("", prefix, params, tenant), branches=branches)
    return plan_reply("decision", body.model, [request])


def _write(questions: Sequence[Question], services: Services) -> list[WrittenQuestion]:
    writer = QuestionWriter(services.tokenizer.encode)
    return [writer.write(question) for question in questions]


def _check_fits(prefix: tuple[int, ...], branches: Sequence[Branch], services: Services) -> None:
    longest = len(prefix) + max(len(branch.ids) for branch in branches) + 1
    context_len = services.engine.info.context_len
    if longest > context_len:
        raise ContextTooLong(
            f"The input and its longest question have {longest} tokens; this model's context is {context_len}.",
            param="input",
        )


def _refuse_repeated(body: DecisionBody) -> None:
    for i, question in enumerate(body.questions):
        if isinstance(question, ChoiceQuestion):
            values = [(type(choice.value), choice.value) for choice in question.choices]
            if len(set(values)) < len(values):
                place = f"questions.{i}.choices"
                raise InvalidRequest(f"{place}: a choice comes twice", param=place)


def write_content(content: Any) -> str:
    """Text as it is, anything else as JSON."""
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def join_input(content: InputContent) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, InputText):
            texts.append(part.text)
        elif isinstance(part, InputJson):
            texts.append(write_content(part.value if part.json_ is None else part.json_))
        else:
            texts.append(part.refusal)
    return "".join(texts)


def write_item(item: InputItem) -> str:
    if isinstance(item, InputMessage):
        return f"{item.role}: {join_input(item.content)}"
    if isinstance(item, InputCall):
        return f"call {item.name}: {item.arguments or item.input}"
    return f"result: {join_input(item.output)}"


def read_typed(question: TypedQuestion) -> Question:
    instructions = join_input(question.instructions)
    if isinstance(question, PredicateQuestion):
        return Question(QuestionKind.PREDICATE, instructions)
    if isinstance(question, ChoiceQuestion):
        options = [Option(option_text(one.value), one.description or "") for one in question.choices]
        return Question(QuestionKind.CHOICE, instructions, tuple(options))
    levels = tuple(Option(level.label, level.description or "") for level in question.levels)
    return Question(QuestionKind.SCORE, instructions, levels)


def option_text(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def read_named(name: str, question: NamedQuestion) -> Question:
    instructions = write_content(question.instructions or "")
    if isinstance(question, NoulQuestion):
        criteria = question.criteria
        notes = [write_content(text or "") for text in (criteria.true, criteria.false)] if criteria else []
        if not instructions and not any(notes):
            place = f"questions.{name}.instructions"
            raise InvalidRequest(f"{place}: a question needs instructions or criteria", param=place)
        return Question(QuestionKind.PREDICATE, instructions, tuple(Option("", note) for note in notes))
    if isinstance(question, NamedChoiceQuestion):
        options = tuple(Option(key, write_content(text or "")) for key, text in question.criteria.items())
        return Question(QuestionKind.CHOICE, instructions or "Which option applies?", options)
    levels = tuple(Option("", write_content(text)) for text in question.criteria)
    return Question(QuestionKind.SCORE, instructions or "Which level applies?", levels)
