"""`quicksilver doctor`: one fix for each problem."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import quicksilver


def test_doctor_names_the_one_thing_to_do(tmp_path: Path) -> None:
    report = quicksilver("doctor", home=tmp_path)
    assert report.returncode == 1
    assert "quicksilver pull" in report.stdout
