from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from quicksilver.editing.prompts import EditRequest
from quicksilver.text.chat import Message, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from quicksilver.training.formats import Formatter, deciding_tokens
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, TextRow, exchange

_CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
]


# As in Qwen3: no system turn unless the request has one.
_WITHOUT_SYSTEM = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _vocabulary(chat_template: str | None = None) -> Vocabulary:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*_CONTROL, *alphabet])}
    full = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    full.add_special_tokens(_CONTROL)
    return Vocabulary(full.to_str(), len(vocab), eos_ids=(2, 0), chat_template=chat_template)


@pytest.fixture(scope="module")
def formatter() -> Formatter:
    """Single bytes as tokens, with the control tokens of nano's base."""
    return Formatter(Tokenizer(_vocabulary()).with_reserved(), max_len=1500)


def answers(formatter: Formatter, row: object) -> list[str]:
    """The answers of a row's document, spelled out."""
    document = next(iter(formatter.documents(row)))  # type: ignore[arg-type]
    found, text = [], ""
    for token_id, counts in zip(document.token_ids.tolist(), document.is_answer.tolist(), strict=True):
        if counts:
            text += formatter.tokenizer.token_text(token_id)
        elif text:
            found.append(text)
            text = ""
    return [*found, text] if text else found


def test_every_assistant_turn_is_an_answer_and_nothing_else(formatter: Formatter) -> None:
    turns = (
        Message("user", "Hi"),
        Message("assistant", "Hello!"),
        Message("user", "Bye"),
        Message("assistant", "Bye!"),
    )
    assert answers(formatter, ChatRow(turns)) == ["Hello!<|im_end|>", "Bye!<|im_end|>"]


def test_a_tool_call_is_an_answer_between_its_tags(formatter: Formatter) -> None:
    call = ToolCall("add", json.dumps({"a": 1}))
    row = ChatRow((Message("user", "add"), Message("assistant", tool_calls=(call,))), (Tool("add"),))
    assert answers(formatter, row) == ['<issue_start>{"name": "add", "arguments": {"a": 1}}<issue_closed><|im_end|>']


def test_thinking_is_opened_by_the_prompt_and_closed_by_the_answer(formatter: Formatter) -> None:
    turns = (Message("user", "2+3?"), Message("assistant", "5", reasoning="2+3=5"))
    row = ChatRow(turns, effort="low")
    assert answers(formatter, row) == ["2+3=5<gh_stars>5<|im_end|>"]
    prompt = formatter.prompt(row)
    assert prompt is not None
    assert formatter.tokenizer.token_text(prompt[-1]) == "<reponame>"


def test_prompts_begin_their_documents(formatter: Formatter) -> None:
    rows = [
        exchange("What?", "That."),
        FimRow("def f(", "x", "):\n    pass"),
        EditRow(EditRequest("a.py", "x = 1\n", "y = x", "\n"), "y = z"),
        PlainRow("Question: Why?\nAnswer:", " Because."),
    ]
    for row in rows:
        prompt, document = formatter.prompt(row), next(iter(formatter.documents(row)))
        assert prompt is not None
        assert document.prompt() == prompt
        assert not (document.is_answer & ~document.is_text)[: len(prompt)].any()
        assert document.is_answer[len(prompt) :].all()


def test_text_counts_whole_and_is_cut_into_rows(formatter: Formatter) -> None:
    pieces = list(formatter.documents(TextRow("word " * 500)))
    assert [len(p.token_ids) for p in pieces] == [1500, 1000]
    assert all(p.is_text.all() for p in pieces)


def test_code_around_a_gap_is_learned_apart_from_the_answer(formatter: Formatter) -> None:
    row = FimRow("x = ", "one", "\ny = 2")
    document = next(formatter.documents(row))
    prompt_len = document.prompt_len
    assert formatter.tokenizer.decode(document.token_ids[prompt_len:-1].tolist()) == " one"
    assert document.is_answer[1:].all()
    assert document.is_text[:prompt_len].all()
    assert not document.is_text[prompt_len:].any()


def test_rows_that_may_not_train_or_do_not_fit_give_no_document(formatter: Formatter) -> None:
    amber = ChatRow((Message("user", "Hi"), Message("assistant", "Hello!")), is_prompt_only=True)
    assert list(formatter.documents(amber)) == []
    assert formatter.prompt(amber) is not None
    assert list(formatter.documents(exchange("x" * 2000, "y"))) == []


def test_self_play_stops_before_the_users_first_word(formatter: Formatter) -> None:
    ids = formatter.self_play_prompt()
    text = "".join(map(formatter.tokenizer.token_text, ids))
    assert text.endswith("<|im_start|>user\n")
    assert text.count("<|im_start|>") == 2


def test_self_play_begins_with_the_user_turn_if_the_template_adds_no_system_turn() -> None:
    formatter = Formatter(Tokenizer(_vocabulary(_WITHOUT_SYSTEM)), max_len=1500)
    text = "".join(map(formatter.tokenizer.token_text, formatter.self_play_prompt()))
    assert text == "<|im_start|>user\n"


@pytest.mark.parametrize(
    ("region", "answer", "decides"),
    [
        ("a\nb\nc", "a\nX\nc", ".#####"),
        ("a\nb\nc", "a\nc", "..##"),
        ("a\nb", "a\nb\nc", "...###"),
        ("a\nb\nc", "a\nb", "...#"),
        ("a\nb", "a\nb", "#.##"),
    ],
)
def test_what_departs_from_the_region_and_comes_back_decides(region: str, answer: str, decides: str) -> None:
    marks = deciding_tokens(region, answer, [1] * len(answer) + [0])
    assert "".join("#" if mark else "." for mark in marks) == decides


def test_tokens_longer_than_a_character_decide_if_a_part_of_them_does() -> None:
    # Tokens: "ab", "\n", "cX", "\n", "d".
    assert deciding_tokens("ab\ncd\nd", "ab\ncX\nd", [2, 1, 2, 1, 1]) == [False, True, True, True, True]


def test_lengths_are_those_of_utf_8() -> None:
    assert deciding_tokens("ä\nb", "ä\nc", [2, 1, 1]) == [False, True, True]
