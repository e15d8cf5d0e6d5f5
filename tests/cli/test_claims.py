"""`quicksilver eval verify`: exit code, lines and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import quicksilver

CLAIMS = """
[[claim]]
id = "share"
text = "{value} % are right"
hardware = "cpu"
harness = "a script"
page = "README.md"
quote = "{value} % are right"
result = "results/*.json"
value = ["share"]
scale = 100
format = ".1f"
band = [90, 100]
"""


def checkout(folder: Path, page: str) -> Path:
    (folder / "docs").mkdir(parents=True)
    (folder / "results").mkdir()
    (folder / "results/a.json").write_text('{"date": "2026-01-01", "share": 0.953}')
    (folder / "README.md").write_text(page)
    claims = folder / "docs/claims.toml"
    claims.write_text(CLAIMS)
    return claims


def test_verify_passes_and_fails_by_the_page(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    good = quicksilver(
        "eval", "verify", "--claims", str(checkout(tmp_path / "a", "95.3 % are right")), "--out", str(out)
    )
    assert good.returncode == 0, good.stderr
    assert "pass share: recorded 95.3, band 90 to 100" in good.stdout
    (claim,) = json.loads(out.read_text())["claims"]
    assert (claim["passed"], claim["text"], claim["source"]) == (True, "95.3 % are right", "a.json")
    edited = quicksilver("eval", "verify", "--claims", str(checkout(tmp_path / "b", "98.3 % are right")))
    assert edited.returncode == 1
    assert "FAIL share" in edited.stdout
    assert "README.md does not contain: 95.3 % are right" in edited.stdout


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    claims = str(checkout(tmp_path / "a", ""))
    unknown = quicksilver("eval", "verify", "--claims", claims, "--claim", "none")
    assert (unknown.returncode, "has no claim none" in unknown.stderr) == (2, True)
    missing = quicksilver("eval", "verify", "--claims", str(tmp_path / "none.toml"))
    assert (missing.returncode, "is not a claims file" in missing.stderr) == (2, True)
    no_data = quicksilver("eval", "--model", "nano")
    assert (no_data.returncode, "eval needs --data" in no_data.stderr) == (2, True)
