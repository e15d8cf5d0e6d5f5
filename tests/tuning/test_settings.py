"""TrainerSettings survive their way through a pipe."""

from __future__ import annotations

from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.hub.files import ModelFiles
from quicksilver.tuning.settings import TrainerSettings


def test_settings_are_one_line_that_is_read_back() -> None:
    files = ModelFiles("nano", Path("/a/nano.gguf"), Path("/a/skill"), None)
    settings = TrainerSettings(
        Path("/home"),
        {"nano": files},
        {"nano:sql": ("nano", Path("/a/sql"))},
        ("sqlite:///a.db", AccountsConfig()),
        evals=Path("/pack"),
    )
    line = settings.encode()
    assert b"\n" not in line
    assert TrainerSettings.decode(line) == settings
