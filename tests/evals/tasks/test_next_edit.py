"""Next edit: cases from real edits, prompts and scores."""

from __future__ import annotations

from pathlib import Path

from quicksilver.evals.task import Answer, Generate
from quicksilver.evals.tasks import (
    next_edit,
)
from tests.evals.build import HELD_OUT, bare_writer, skilled_writer, write_rows

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


def test_a_word_that_occurs_nowhere_cannot_be_predicted() -> None:
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
