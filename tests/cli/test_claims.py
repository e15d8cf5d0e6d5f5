"""`quicksilver eval verify`: exit code, lines and JSON."""

from __future__ import annotations

import json
import os
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


# It writes the number of a file in the data folder, found from another working directory.
COPY = "import sys; n = open(sys.argv[1]).read(); open(sys.argv[2] + '/r.json', 'w').write(n)"
MEASURED = f"""
data = "number.json"
is_measured = true
minutes = 3
command = \"\"\"{{python}} -c "{COPY}" {{data}} {{out}}\"\"\"
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


def test_verify_measures_claims_that_take_at_most_the_given_minutes(tmp_path: Path) -> None:
    claims = checkout(tmp_path / "a", "95.3 % are right")
    claims.write_text(CLAIMS + MEASURED)
    (tmp_path / "number.json").write_text('{"share": 0.97}')
    command = ("eval", "verify", "--claims", str(claims), "--data", os.path.relpath(tmp_path))
    quick, longer = quicksilver(*command), quicksilver(*command, "--minutes", "3")
    assert "band 90 to 100, not measured: takes 3 minutes (--minutes 3)" in quick.stdout
    assert "0 were measured here" in quick.stdout
    assert "running" not in quick.stderr
    assert "recorded 95.3, measured 97, band 90 to 100" in longer.stdout, longer.stderr
    assert "running share, expected to take 3 minutes on two cores" in longer.stderr


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    claims = str(checkout(tmp_path / "a", ""))
    unknown = quicksilver("eval", "verify", "--claims", claims, "--claim", "none")
    assert (unknown.returncode, "has no claim none" in unknown.stderr) == (2, True)
    missing = quicksilver("eval", "verify", "--claims", str(tmp_path / "none.toml"))
    assert (missing.returncode, "is not a claims file" in missing.stderr) == (2, True)
    no_data = quicksilver("eval", "--model", "nano")
    assert (no_data.returncode, "eval needs --data" in no_data.stderr) == (2, True)
