from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from quicksilver.evals.sandbox import isolation, passes


def test_program_that_ends_by_itself_passes() -> None:
    assert passes("def double(x):\n    return 2 * x\nassert double(4) == 8")


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "def broken(:",
        "import sys; sys.exit(0)",
        "import os; os._exit(3)",
        "raise KeyboardInterrupt",
        "x = bytearray(1 << 31)",
        "open('large', 'wb').write(bytes(1 << 22))",
    ],
    ids=["failed check", "syntax", "left before the checks", "died", "interrupt", "memory", "large file"],
)
def test_program_that_does_not_do_its_work_fails(program: str) -> None:
    assert not passes(program)


def test_endless_program_is_stopped() -> None:
    assert not passes("while True: pass", seconds=0.5)


def test_network_is_out_of_reach() -> None:
    program = """
        import socket
        try:
            socket.create_connection(("127.0.0.1", {port}), timeout=1)
        except OSError:
            pass
        else:
            raise SystemExit(1)
    """.replace("\n        ", "\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert passes(program.replace("{port}", str(listener.getsockname()[1])))
    assert isolation() in ("network namespace", "sockets disabled in Python only")


def test_program_gets_an_empty_environment_and_leaves_nothing() -> None:
    before = set(Path(tempfile.gettempdir()).glob("quicksilver-eval-*"))
    assert passes("import os\nopen('note', 'w').write('x')\nassert 'PATH' not in os.environ")
    assert set(Path(tempfile.gettempdir()).glob("quicksilver-eval-*")) <= before
