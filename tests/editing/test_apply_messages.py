"""Messages of editors that ask for an update to be applied."""

from __future__ import annotations

import pytest

from quicksilver.editing.apply import ApplyRequest, parse_apply
from quicksilver.errors import InvalidRequest


def test_tagged_prompt_is_read() -> None:
    original = "<|original_code|>\na\nb\n<|/original_code|>"
    update = "<|update_snippet|>\n// ...\nc\n<|/update_snippet|>"
    request = parse_apply(f"{original}\n\n{update}\n<|!@#IS_APPLY!@#|>")
    assert (request.original, request.update) == ("a\nb", "// ...\nc")


@pytest.mark.parametrize("ending", ["", " Leave existing comments in place unless changes require modifying them."])
@pytest.mark.parametrize("language", ["", "python"])
def test_the_message_of_continue_without_tags_is_read(ending: str, language: str) -> None:
    file, update = "import os\n\n\ndef a():\n    return 1\n", "def a():\n    return 2"
    introduction = "The following code was suggested as an edit:"
    message = f"{file}\n\n{introduction}\n```{language}\n{update}\n```\nPlease apply it to the previous code.{ending}"
    assert parse_apply(message) == ApplyRequest(file, update)
    quoted = f"# {introduction}\n{message}"
    assert parse_apply(quoted).original == f"# {introduction}\n{file}"


def test_line_breaks_next_to_the_tags_are_not_part_of_the_sections() -> None:
    original = "<|original_code|>\r\na\r\nb\r\n\r\n<|/original_code|>"
    request = parse_apply(f"{original}\r\n<|update_snippet|>\r\nc\r\n<|/update_snippet|>")
    assert (request.original, request.update) == ("a\r\nb\r\n", "c")


@pytest.mark.parametrize("prompt", ["apply this", "<|original_code|>\na", "<|original_code|>a<|/original_code|>", ""])
def test_a_prompt_without_both_sections_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="has no section"):
        parse_apply(prompt)
