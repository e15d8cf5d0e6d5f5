from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.editing.prompts import (
    EDIT_PREFILL,
    EDIT_STOP,
    EditRequest,
    Snippet,
    can_edit,
    edit_fence,
    edit_messages,
    edit_prompt,
    edit_reply,
    fim_bias,
    fim_lead,
    fim_prompt,
    fim_space,
)
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import SPECIAL_NAMES, ByteTokenizer, tokenizer_json

PREFIX, SUFFIX, MIDDLE = 11, 12, 13
_REQUEST = EditRequest(
    path="a.py",
    before="x = 1\n",
    region="y = x\n",
    after="z = y\n",
    cursor=2,
    snippets=(Snippet("b.py", "import a"),),
    history=("-old", "-new"),
)


def test_native_gap_tokens_keep_their_order_beside_our_edit_tokens() -> None:
    renamed = {
        "<jupyter_start>": "<|fim_prefix|>",
        "<jupyter_text>": "<|fim_suffix|>",
        "<jupyter_code>": "<|fim_middle|>",
    }
    names = tuple(renamed.get(name, name) for name in SPECIAL_NAMES)
    native = Tokenizer(Vocabulary(json.dumps(tokenizer_json(names)), 273, (2, 0)))
    skilled = native.with_roles({"edit_open": 14, "edit_close": 15})
    assert can_edit(skilled)
    assert fim_prompt(skilled, "ab ", "c") == [PREFIX, *skilled.encode("ab "), SUFFIX, *skilled.encode("c"), MIDDLE]
    assert (fim_lead(skilled, "ab"), fim_bias(skilled)) == ("", {})


def test_pretrained_fim_weights_get_prefix_then_suffix(born: Tokenizer) -> None:
    assert fim_prompt(born, "ab ", "c") == [PREFIX, *born.encode("ab "), SUFFIX, *born.encode("c"), MIDDLE]
    assert fim_lead(born, "ab ") == ""


def test_skill_weights_continue_the_prefix(tiny: Tokenizer) -> None:
    assert fim_prompt(tiny, "ab", "c") == [SUFFIX, *tiny.encode("c"), PREFIX, *tiny.encode("ab")]


def test_only_skill_weights_get_an_end_bias(tiny: Tokenizer, born: Tokenizer) -> None:
    assert list(fim_bias(tiny)) == [tiny.roles.turn_close]
    assert fim_bias(born) == {}


@pytest.mark.parametrize(
    ("prefix", "lead"),
    [
        ("x = comp", " comp"),
        ("    comp", " comp"),
        ("a.comp", "comp"),
        ("comp", "comp"),
        ("x_", "_"),
        ("x_y", "y"),
        ("foo(", "("),
        ("x =", " ="),
        ("x = 12", ""),
        ("ab  ", " "),
        ("ab\n", ""),
        ("ab\n\t", ""),
        ("", ""),
        ("a" * 60, ""),
        ("é" * 3, "é" * 3),
        ("<|file_sep|>a.py\n<|fim_prefix|>", ""),
        ("<|fim_prefix|>(", "("),
    ],
)
def test_an_unfinished_word_becomes_the_lead(tiny: Tokenizer, prefix: str, lead: str) -> None:
    assert fim_lead(tiny, prefix) == lead


def test_text_without_tokens_is_not_a_lead() -> None:
    class Deaf(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("q", ""))

    deaf = Deaf().with_reserved()
    assert can_edit(deaf)
    assert fim_lead(deaf, "x = eq") == ""
    assert fim_lead(deaf, "x = eg") == " eg"


def test_training_prompts_have_the_same_lead(tiny: Tokenizer, born: Tokenizer) -> None:
    assert [fim_space(tiny, text) for text in ("ab ", "ab", "ab\n")] == [" ", "", ""]
    assert fim_space(born, "ab ") == fim_lead(born, "ab") == ""


def test_stand_in_for_an_empty_suffix_is_empty(tiny: Tokenizer) -> None:
    assert fim_prompt(tiny, "ab", "<|endoftext|>") == fim_prompt(tiny, "ab", "")


def test_file_head_of_a_client_becomes_tokens(tiny: Tokenizer) -> None:
    ids = fim_prompt(tiny, "<|file_sep|>a.py\n<|fim_prefix|>x", "")
    assert ids == [5, *tiny.encode("a.py\n"), *fim_prompt(tiny, "x", "")]
    assert fim_prompt(tiny, "<|fim_prefix|>x", "") == fim_prompt(tiny, "x", "")


def test_special_tokens_in_code_stay_text(tiny: Tokenizer) -> None:
    for name in SPECIAL_NAMES:
        ids = fim_prompt(tiny, f"a{name}", f"{name}b")
        assert [i for i in ids if i <= 16] == [SUFFIX, PREFIX]
        request = EditRequest(name, name, name, name, 1, (Snippet(name, name),), (name,))
        plain = EditRequest("p", "p", "p", "p", 1, (Snippet("p", "p"),), ("p",))
        special = [[i for i in edit_prompt(tiny, r) if i <= 16] for r in (request, plain)]
        assert special[0] == special[1]


def test_weights_without_infilling_continue_the_prefix() -> None:
    bare = ByteTokenizer()
    assert fim_prompt(bare, "abc", "d") == bare.encode("abc")
    assert fim_prompt(bare, "abc", "d", max_tokens=2) == bare.encode("bc")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(4, 60))
def test_prompt_that_is_too_long_is_cut_far_from_the_gap(num_before: int, num_after: int, limit: int) -> None:
    tiny = ByteTokenizer().with_reserved()
    prefix, suffix = "".join(map(chr, range(33, 33 + num_before))), "".join(map(chr, range(80, 80 + num_after)))
    ids = fim_prompt(tiny, prefix, suffix, max_tokens=limit)
    assert len(ids) <= limit
    middle = ids.index(PREFIX)
    kept_before, kept_after = tiny.decode(ids[middle + 1 :]), tiny.decode(ids[1:middle])
    assert prefix.endswith(kept_before)
    assert suffix.startswith(kept_after)
    if len(ids) < limit:
        assert (kept_before, kept_after) == (prefix, suffix)


def test_edit_prompt_marks_region_and_cursor(tiny: Tokenizer) -> None:
    text = "".join(tiny.token_text(i) for i in edit_prompt(tiny, _REQUEST))
    assert text == (
        "<file_sep>b.py\nimport a\n<file_sep>edit\n-old\n<file_sep>edit\n-new\n"
        "<file_sep>a.py\nx = 1\n<jupyter_output>y <issue_comment>= x\n<jupyter_script>z = y\n<jupyter_code>"
    )


def test_edit_prompt_keeps_region_and_nearest_code_when_room_is_short(tiny: Tokenizer) -> None:
    whole = edit_prompt(tiny, _REQUEST)
    for limit in range(20, len(whole) + 1):
        ids = edit_prompt(tiny, _REQUEST, max_tokens=limit)
        assert len(ids) <= limit
        assert "y = x\n" in tiny.decode(ids)
    assert edit_prompt(tiny, _REQUEST, max_tokens=len(whole)) == whole
    assert "-new" in tiny.decode(edit_prompt(tiny, _REQUEST, max_tokens=len(whole) - 12))


def test_edit_tokens_are_needed_for_an_edit_prompt(tiny: Tokenizer) -> None:
    assert can_edit(tiny)
    assert not can_edit(ByteTokenizer())
    with pytest.raises(ValueError, match="edit_messages"):
        edit_prompt(ByteTokenizer(), _REQUEST)


def test_cursor_is_left_out_where_there_is_none(tiny: Tokenizer) -> None:
    request = EditRequest("", "", "ab", "")
    assert edit_prompt(tiny, request) == [14, *tiny.encode("ab"), 15, MIDDLE]


def test_instruction_for_chat_weights_has_all_parts() -> None:
    *examples, message = edit_messages(_REQUEST)
    assert [turn.role for turn in examples] == ["user", "assistant"] * 2
    assert message.role == "user"
    for part in ("b.py:\nimport a", "-old", "-new", "a.py:\n```\nx = 1\ny = x\n", "z = y", "rewrite:\n```\ny = x\n"):
        assert part in message.content


def test_the_examples_show_one_continued_change_and_one_unchanged_region() -> None:
    changed, answer, same, echo = edit_messages(_REQUEST)[:4]
    region = (
        EDIT_PREFILL + "    for item in items:\n        amount += item.price\n    return amount * (1 + {})" + EDIT_STOP
    )
    assert region.format("tax") in changed.content
    assert answer.content == region.format("tax_rate")
    assert echo.content in same.content


@pytest.mark.parametrize(
    "answer",
    [
        "a\nb",
        "a\nb\n\n",
        "```\na\nb\n```",
        "```python\na\nb\n```\n",
        "```\na\nb",
        "\n```js\na\nb```",
        "<|code_to_edit|>\na\nb\n<|/code_to_edit|>",
        "```\n<|code_to_edit|>\na<|cursor|>\nb\n<|/code_to_edit|>\n```",
    ],
)
def test_reply_is_a_bare_fence_with_the_region(answer: str) -> None:
    assert edit_reply(EditRequest("", "", "old", ""), answer) == "```\na\nb\n```"


@pytest.mark.parametrize("answer", ["", "\n ", "None", "```\n```", "```\n\n```"])
def test_an_empty_answer_repeats_the_region(answer: str) -> None:
    assert edit_reply(EditRequest("", "", "  old\n", ""), answer) == "```\n  old\n\n```"


def test_reply_ends_and_breaks_lines_as_the_region_does() -> None:
    assert edit_reply(EditRequest("", "", "a\n\n", ""), "b") == "```\nb\n\n\n```"
    assert edit_reply(EditRequest("", "", "a\r\nb", ""), "c\nd\r\ne") == "```\nc\r\nd\r\ne\n```"


def test_fences_of_the_code_itself_are_kept() -> None:
    region = "text\n```py\ncode\n```\nend"
    assert edit_reply(EditRequest("", "", region, ""), region) == f"```\n{region}\n```"


def test_cursor_tag_of_the_code_itself_is_kept() -> None:
    region = "TAG = '<|cursor|>'"
    assert edit_reply(EditRequest("", "", region, ""), region) == f"```\n{region}\n```"


@pytest.mark.parametrize(("region", "fence"), [("a", "```"), ("# a\n```sh\nls\n```", "````"), ("`````", "``````")])
def test_the_fence_of_an_instruction_is_longer_than_those_in_the_region(region: str, fence: str) -> None:
    request = EditRequest("a.md", "", region, "")
    prefill, stop = edit_fence(request)
    assert (prefill, stop) == (f"{fence}\n", f"\n{fence}")
    assert f"Region to rewrite:\n{prefill}{region}{stop}" in edit_messages(request)[-1].content
    assert stop not in region


def test_prefill_and_stop_are_the_fence() -> None:
    assert edit_reply(EditRequest("", "", "a", ""), f"{EDIT_PREFILL}b{EDIT_STOP}") == f"{EDIT_PREFILL}b{EDIT_STOP}"
