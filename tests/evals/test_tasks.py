"""Every task on made-up items: prompts and scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from quicksilver.evals.task import Answer, Generate
from quicksilver.evals.tasks import (
    fim,
    gsm8k,
    infilling,
    json_schema,
    language,
    multiple_choice,
    next_edit,
    programs,
    tools,
)
from quicksilver.text.channels import Channels
from quicksilver.text.conversation import ToolCall
from tests.evals.build import HELD_OUT, bare_writer, skilled_writer, write_pack, write_rows


def test_choices_are_scored_after_the_question_and_by_length() -> None:
    row = {"task": "sciq", "q": "What is red?", "c": ["a very long thing", "blood"], "g": 1}
    question = multiple_choice.read_question(row)
    ask = multiple_choice.ask(question, skilled_writer())
    texts = [skilled_writer().tokenizer.decode(ids) for ids in (ask.prompt_ids, *ask.continuations)]
    assert texts == ["Question: What is red?\nAnswer:", " a very long thing", " blood"]
    answer = Answer(logprobs=((-1.0, -2.0), (-2.9,)))
    assert multiple_choice.score(question, answer) == {"acc": 1.0, "acc_norm": 0.0}


def test_blank_is_filled_and_only_the_rest_is_scored() -> None:
    doc = {"sentence": "_ fed Ann because she was hungry.", "option1": "Bob", "option2": "Ann", "answer": "1"}
    question = multiple_choice.read_blank({"task": "winogrande", "doc": doc})
    ask = multiple_choice.ask(question, skilled_writer())
    assert ask.num_given == (3, 3)
    assert skilled_writer().tokenizer.decode(ask.continuations[0]) == "Bob fed Ann because she was hungry."
    assert ask.prompt_ids == (0,)
    assert multiple_choice.score(question, Answer(logprobs=((-1.0,), (-2.0,)))) == {"acc": 1.0}


def test_windows_of_a_text_touch_and_do_not_overlap() -> None:
    text = "".join(chr(97 + i % 26) for i in range(3 * language.WINDOW))
    shared, writer = language.RunningText(text), skilled_writer()
    asks = [language.ask_window(language.Window(shared, i), writer) for i in range(2)]
    parts = ["".join(map(chr, (i - 17 for i in (*a.prompt_ids, *a.continuations[0])))) for a in asks]
    assert "".join(parts) == text[: 2 * language.WINDOW]


def test_perplexity_is_that_of_all_tokens_together() -> None:
    window = language.Window(language.RunningText(""), 0)
    scores = [language.score_window(window, Answer(logprobs=((-2.0,) * n,))) for n in (1, 3)]
    assert language.perplexity(scores)["ppl"] == pytest.approx(math.exp(2.0))


def test_last_word_must_be_said_exactly() -> None:
    passage = language.Passage("He saw the", " dog")
    assert language.ask_word(passage, skilled_writer()).max_new_tokens == 4
    assert language.score_word(passage, Answer(" dog")) == {"acc": 1.0}
    assert language.score_word(passage, Answer(" cat")) == {"acc": 0.0}


FILE = "".join(f"    value_{i} = compute({i})\n" for i in range(30))


def test_gaps_put_back_together_are_the_file() -> None:
    gaps = [gap for name in "abcdef" for lines in (1, 4) for gap in fim.cut_gaps(FILE, name, lines)]
    assert {gap.kind for gap in gaps} == {"line", "rest"}
    assert all(gap.prefix + gap.middle + gap.suffix in FILE for gap in gaps)
    assert all(gap.middle.strip() and not gap.middle.endswith("\n") for gap in gaps)
    assert gaps == [gap for name in "abcdef" for lines in (1, 4) for gap in fim.cut_gaps(FILE, name, lines)]


def test_gap_is_asked_with_both_sides_where_weights_can_and_scored_exactly() -> None:
    gap = fim.Gap("x = ", "compute(1)", "\ny = 2", "rest")
    writer, roles = skilled_writer(), skilled_writer().tokenizer.roles
    ask = fim.ask(gap, writer)
    assert [i for i in ask.prompt_ids if i in (roles.fim_prefix, roles.fim_suffix)] == [
        roles.fim_suffix,
        roles.fim_prefix,
    ]
    assert roles.fim_prefix in ask.stop_ids
    assert bare_writer().tokenizer.decode(fim.ask(gap, bare_writer()).prompt_ids) == "x = "
    assert fim.score(gap, Answer("compute(1) \n"))["exact"] == 1.0
    near = fim.score(gap, Answer("compute(1)\nmore"))
    assert (near["exact"], near["exact_rest"], near["exact_unstopped"]) == (1.0, 1.0, 0.0)
    wrong = fim.score(gap, Answer("compute(2)"))
    assert (wrong["exact"], wrong["exact_unstopped"]) == (0.0, 0.0)
    assert 0.5 < wrong["similarity"] < 1.0


@pytest.mark.parametrize(
    "text", ["compute(1)", "compute(1)\nmore", " compute(1) \n", "\ncompute(1)", "", "compute(1)\r\n"]
)
def test_single_line_is_scored_as_a_line_break_as_stop_would_cut_it(text: str) -> None:
    gap = fim.Gap("x = ", "compute(1)", "\ny = 2", "rest")
    tokenizer = skilled_writer().tokenizer
    channels = Channels(tokenizer, stop=("\n",))
    cut = "".join(delta.text for delta in [*channels.push(tokenizer.encode(text)), *channels.finish()])
    assert fim.score(gap, Answer(text))["exact"] == fim.score(gap, Answer(cut))["exact_unstopped"]


def test_several_lines_are_not_cut_at_the_first() -> None:
    gap = fim.Gap("x = 1\n", "y = 2\nz = 3", "\n", "line")
    assert fim.score(gap, Answer("y = 2\nz = 3\n"))["exact"] == 1.0
    assert fim.score(gap, Answer("y = 2"))["exact"] == 0.0


def test_contexts_ask_the_same_gaps_with_more_or_less_of_the_file() -> None:
    near, wide = (list(fim.cut_gaps(FILE * 20, "a", 1, around)) for around in (fim.Around(30, 10), fim.Around(90, 40)))
    assert [gap.middle for gap in near] == [gap.middle for gap in wide]
    assert all(long.prefix.endswith(short.prefix) for short, long in zip(near, wide, strict=True))
    assert all(long.suffix.startswith(short.suffix) for short, long in zip(near, wide, strict=True))
    assert max(len(gap.prefix) for gap in near) == 30
    assert max(len(gap.prefix) for gap in wide) == 90


def test_infilled_line_is_run_against_the_tests() -> None:
    hole = infilling.Hole(
        "def f(x):\n", "    return y\n", "    y = x + 1\n", "def check(c):\n    assert c(1) == 2\ncheck(f)"
    )
    metrics = infilling.score(hole, Answer("    y = 1 + x"))
    assert (metrics["pass"], metrics["exact"], metrics["longer"]) == (1.0, 0.0, 0.0)
    assert infilling.score(hole, Answer("    y = x"))["pass"] == 0.0


PROBLEM = programs.Problem("Complete…", "import math\n\ndef f(x):\n", "f", "assert f(1.5) == 1")


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Sure:\n```python\ndef f(x):\n    return math.floor(x)\n```\nDone.", 1.0),
        ("    return math.floor(x)", 1.0),
        ("```\ndef f(x):\n    return 0\n```", 0.0),
        ("I cannot.", 0.0),
    ],
    ids=["fenced function", "bare body", "wrong", "prose"],
)
def test_program_is_found_in_the_answer_and_run(text: str, is_right: float) -> None:
    assert programs.score(PROBLEM, Answer(text)) == {"pass": is_right}


def test_mbpp_names_its_tests(tmp_path: Path) -> None:
    row = {"task": "mbpp", "text": "Add.", "test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""}
    (problem,) = programs.load_mbpp(write_pack(tmp_path, [row]))
    assert (problem.entry_point, "assert add(1, 2) == 3" in problem.request) == ("add", True)


def test_last_number_of_a_solution_counts(tmp_path: Path) -> None:
    row = {"task": "gsm8k_test", "question": "How much?", "answer": "2 * 600 = <<1200>>\n#### 1,200"}
    (problem,) = gsm8k.load(write_pack(tmp_path, [row]))
    assert gsm8k.score(problem, Answer("First 600, so $1200.00.")) == {"acc": 1.0}
    assert gsm8k.score(problem, Answer("No idea")) == {"acc": 0.0}


SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "parses", "valid"), [('{"a": 1}', 1.0, 1.0), ('{"a": "x"}', 1.0, 0.0), ('Here: {"a": 1}', 0.0, 0.0)]
)
def test_json_is_parsed_and_held_against_its_schema(text: str, parses: float, valid: float) -> None:
    assert json_schema.score(json_schema.Wish(SCHEMA), Answer(text)) == {"parses": parses, "valid": valid}


def test_without_a_validator_validity_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema_rs", None)
    wish = json_schema.Wish(SCHEMA)
    assert [json_schema.score(wish, Answer(text)) for text in ('{"a": 1}', "{")] == [{"parses": 1.0}, {"parses": 0.0}]


DIALOGUE = {
    "tools": [{"name": "FindBus", "description": "Find a bus", "parameters": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "A bus to Rome tomorrow"},
        {"role": "assistant", "tool_calls": [{"name": "FindBus", "arguments": {"to": "Rome", "on": "2019-03-02"}}]},
        {"role": "tool", "content": [{"fare": "3"}]},
        {"role": "assistant", "content": "It costs 3."},
    ],
}


def test_dialogue_gives_a_turn_with_a_call_and_one_without() -> None:
    called, silent = tools.dialogue_turns(DIALOGUE, 0)
    assert (called.name, len(called.messages), silent.name, len(silent.messages)) == ("FindBus", 1, "", 3)
    assert tools.ask(called, skilled_writer()).tool_names == {"FindBus"}
    assert [turn.name for turn in tools.dialogue_turns(DIALOGUE, 1)] == ["FindBus"]


def test_call_needs_name_and_every_argument() -> None:
    called, silent = tools.dialogue_turns(DIALOGUE, 0)

    def scored(*calls: ToolCall) -> dict[str, float]:
        return dict(tools.score(called, Answer(calls=calls)))

    right = ToolCall("FindBus", '{"on": "2019-03-02", "to": "rome"}')
    assert scored(right) == {"call": 1.0, "name": 1.0}
    assert scored(ToolCall("FindBus", '{"to": "Rome"}')) == {"call": 0.0, "name": 1.0}
    assert scored(ToolCall("FindBus", '{"to": "Rome", "on": "2019-03-02", "at": "9"}'))["call"] == 0.0
    assert scored(ToolCall("FindBus", "{")) == {"call": 0.0, "name": 1.0}
    assert scored() == scored(right, right) == {"call": 0.0, "name": 0.0}
    assert tools.score(silent, Answer("hello")) == {"no_call": 1.0}
    assert tools.score(silent, Answer(calls=(right,))) == {"no_call": 0.0}


def test_call_whose_values_are_all_said_counts_as_stated() -> None:
    said = json.loads(json.dumps(DIALOGUE).replace("2019-03-02", "tomorrow"))
    (turn,) = tools.dialogue_turns(said, 1)
    answer = Answer(calls=(ToolCall("FindBus", '{"to": "Rome", "on": "tomorrow"}'),))
    assert tools.score(turn, answer) == {"call": 1.0, "name": 1.0, "call_stated": 1.0}


def test_bfcl_lets_optional_arguments_be_absent() -> None:
    function = {"name": "area", "description": "", "parameters": {"type": "dict", "properties": {}}}
    row = {"id": "1", "question": [[{"role": "user", "content": "Area?"}]], "function": [function]}
    turn = tools.bfcl_turn(row, {"ground_truth": [{"area": {"base": [10], "unit": ["cm", ""]}}]})
    assert turn.tools[0].parameters["type"] == "object"
    assert tools.score(turn, Answer(calls=(ToolCall("area", '{"base": 10}'),)))["call"] == 1.0
    assert tools.score(turn, Answer(calls=(ToolCall("area", '{"base": 10, "unit": "m"}'),)))["call"] == 0.0
    assert tools.bfcl_turn(row, None).name == ""


BEFORE = """def load(path, mode):
    handle = open(path, mode)
    first = handle.readline()
    print(first)
    rest = handle.read()
    print(rest)
    return handle"""
AFTER = BEFORE.replace("print(", "log(")


def _edit(before: str, after: str) -> dict[str, str]:
    return {"p": HELD_OUT, "f": "a.py", "q": "load", "to": "2.0", "a": before, "b": after}


def test_repeated_change_is_to_be_made_again_and_only_it() -> None:
    case = next(case for case in next_edit.cases(_edit(BEFORE, AFTER)) if case.kind == "repeated")
    assert "-    print(first)\n+    log(first)" in case.request.history[0]
    assert "print(rest)" in case.request.region
    assert case.answer == case.request.region.replace("print(rest)", "log(rest)")
    assert case.request.before + case.request.region + case.request.after == AFTER.replace("log(rest)", "print(rest)")


def test_changed_signature_is_followed_in_the_body() -> None:
    before = BEFORE.replace("    handle = open(path, mode)", "    check(mode)\n    handle = open(path, mode)")
    after = before.replace("path", "name")
    case = next(case for case in next_edit.cases(_edit(before, after)) if case.kind == "signature")
    assert "+def load(name, mode):" in case.request.history[0]
    assert case.answer == case.request.region.replace("path", "name") != case.request.region


def test_word_that_stands_nowhere_yet_cannot_be_known() -> None:
    done = next_edit.Hunk(0, 1, ("a(x)",), ("b(x)",))
    assert next_edit.is_implied([], done, next_edit.Hunk(3, 4, ("a(y)",), ("b(y)",)))
    assert not next_edit.is_implied([], done, next_edit.Hunk(3, 4, ("a(y)",), ("b(surprise)",)))
    assert not next_edit.is_implied([], done, next_edit.Hunk(3, 4, ("c(y)",), ("d(y)",)))


def test_renamed_variable_is_renamed_in_the_region() -> None:
    cases = [case for case in next_edit.cases(_edit(BEFORE, AFTER)) if case.kind == "rename"]
    (case,) = cases
    assert "handle" in case.request.region
    assert "handle" not in case.answer
    assert "handle = " in case.request.history[0]


def test_echo_must_come_back_unchanged(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "train" / "edits_python.jsonl.xz", [{**_edit(BEFORE, AFTER), "to": str(i)} for i in range(12)]
    )
    cases = list(next_edit.load(tmp_path))
    echo = next(case for case in cases if case.kind == "echo")
    assert echo.answer == echo.request.region
    assert next_edit.score(echo, Answer(echo.request.region + "\n")) == {"echo": 1.0}
    assert next_edit.score(echo, Answer("something else")) == {"echo": 0.0}
    other = next(case for case in cases if case.kind != "echo")
    assert next_edit.score(other, Answer(f"```\n{other.answer}\n```"))["exact"] == 1.0
    assert next_edit.score(other, Answer(other.request.region))["exact"] == 0.0


def test_edit_is_asked_in_tokens_or_in_words() -> None:
    (case, *_) = next_edit.cases(_edit(BEFORE, AFTER))
    in_tokens, in_words = next_edit.ask(case, skilled_writer()), next_edit.ask(case, bare_writer())
    assert in_tokens.prompt_ids[-1] == skilled_writer().tokenizer.roles.fim_middle
    assert in_words.stop == ("\n```",)
    assert isinstance(in_words, Generate)
    assert bare_writer().tokenizer.decode(in_words.prompt_ids).endswith("```\n")
