"""Tables of the TOML file: known names and types only."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from quicksilver.cli.tables import read_tables
from quicksilver.errors import InvalidRequest


def test_tables_are_returned_by_name_and_whole_numbers_are_valid_seconds() -> None:
    text = "port = 1\n[engine]\nmax_rows = 64\n[timeouts]\ndrain_s = 5\n[limits]\nedit_min_logprob = -2\n"
    assert read_tables(tomllib.loads(text), Path("x.toml")) == {
        "engine": {"max_rows": 64},
        "timeouts": {"drain_s": 5},
        "limits": {"edit_min_logprob": -2},
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[engine]\nmax_runing = 8\n", "max_runing"),
        ('[engine]\nmax_running = "many"\n', "max_running"),
        ("[timeouts]\ndrain_s = true\n", "drain_s"),
        ("engine = 3\n", "[engine]"),
        ("hybrid = 3\n", "[hybrid]"),
        ("[hybrid]\nrules = []\n", "rules"),
        ('[hybrid]\n[[hybrid.rules]]\nname = "a"\nto = ["nano"]\ngatte = 1\n', "gatte"),
    ],
)
def test_wrong_values_in_a_table_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'model = "nano"\n{text}')
    with pytest.raises(InvalidRequest) as refused:
        read_tables(tomllib.loads(path.read_text()), path)
    assert named in refused.value.message
    assert str(path) in refused.value.message
