"""Names of tools that are too long for a chat body."""

from __future__ import annotations

from quicksilver.server.endpoints.chat.tool_names import MAX_NAME_CHARS, short_name


def test_short_names_are_kept_and_long_ones_stay_apart() -> None:
    assert short_name("n" * MAX_NAME_CHARS) == "n" * MAX_NAME_CHARS
    one, two = short_name("n" * 100 + "1"), short_name("n" * 100 + "2")
    assert len(one) == len(two) == MAX_NAME_CHARS
    assert one != two
