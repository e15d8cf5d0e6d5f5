"""Prompts of tasks: the forms that serving uses."""

from __future__ import annotations

from quicksilver.editing.prompts import EDIT_STOP, EditRequest
from tests.evals.build import bare_writer, skilled_writer

REQUEST = EditRequest("a.py", "", "x = 1", "", cursor=0, history=())


def test_an_empty_text_becomes_the_end_of_text_token() -> None:
    builder = bare_writer()
    assert builder.text("") == builder.tokenizer.eos_ids[-1:]
    assert builder.text("ab") == tuple(builder.tokenizer.encode("ab"))


def test_edits_use_edit_tokens_if_the_tokenizer_has_them() -> None:
    assert skilled_writer().edit(REQUEST, 64).stop == ()
    assert bare_writer().edit(REQUEST, 64).stop == (EDIT_STOP,)


def test_infill_prompts_fit_the_context_and_stop_at_other_sections() -> None:
    builder = skilled_writer()
    prompt = builder.fim("a" * 9000, "b" * 9000, 64)
    assert len(prompt.ids) <= builder.context_len - 64
    assert set(builder.tokenizer.eos_ids) < set(prompt.stop_ids)
