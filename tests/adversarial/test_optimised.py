"""Tests of refusals under `python -O`, which removes `assert`: no check of input may depend on one.

The asserts of test modules stay, since pytest rewrites them. pytest warns that the others do not, which is the purpose
of the run, so that one warning is not an error here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELECTED = (
    "tests/adversarial/test_json_bombs.py",
    "tests/adversarial/test_charging.py",
    "tests/adversarial/test_special_tokens.py",
    "tests/engine/test_admission.py",
    "tests/engine/test_pages.py",
    "tests/model/files",
    "tests/server/http",
    "tests/server/endpoints/chat",
)


# Conditions on constants and shapes of kernels, which no request can change.
KERNELS = Path("backends/cuda")


def test_asserts_only_narrow_types() -> None:
    """`x is not None` and `isinstance` without calls: no work is lost under `-O`, and no value from outside is judged.
    What a wrong value would break is checked by a raise."""
    package = ROOT / "quicksilver"
    others: list[str] = []
    for path in sorted(package.rglob("*.py")):
        if not path.relative_to(package).is_relative_to(KERNELS):
            found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
            others += [f"{path.name}:{node.lineno}" for node in found if not narrows_a_type(node.test)]
    assert others == []


def narrows_a_type(test: ast.expr) -> bool:
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call | ast.Await | ast.NamedExpr)]
    if isinstance(test, ast.Call):
        return calls == [test] and isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    return not calls and isinstance(test, ast.Compare) and [type(one) for one in test.ops] == [ast.IsNot]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("x is not None", True),
        ("self.x is not None", True),
        ("isinstance(x, int)", True),
        ("isinstance(read(), int)", False),
        ("read() is not None", False),
        ("(x := y) is not None", False),
        ("x > 0", False),
        ("is_valid(x)", False),
    ],
)
def test_what_counts_as_narrowing(condition: str, expected: bool) -> None:
    assert narrows_a_type(ast.parse(condition, mode="eval").body) is expected


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_refusals_do_not_depend_on_assert() -> None:
    # The lists of naughty strings repeat one check hundreds of times and take most of the time.
    options = ("-q", "-x", "-k", "not naughty", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning")
    command = [sys.executable, "-O", "-m", "pytest", *options, *SELECTED]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
