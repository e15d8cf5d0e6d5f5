"""Run the API tests of OpenAI's Python library against this server: `python -m tests.contract.openai_suite.run`.

The source release comes from the package index and gets an environment of its own under `.build/openai-suite`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / ".build" / "openai-suite"
VERSION = "3.49.0"
SOURCE = BUILD / f"openai-{VERSION}"
PYTHON = BUILD / "venv" / "bin" / "python"
RESOURCES = (
    "test_batches.py",
    "test_completions.py",
    "test_conversations.py",
    "test_files.py",
    "test_models.py",
    "test_responses.py",
    "chat",
    "conversations",
    "responses",
)


def install() -> None:
    if (BUILD / "venv" / VERSION).exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(BUILD / "venv")], check=True)
    pip = [str(PYTHON), "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "download", *quiet, "--no-deps", "--no-binary", ":all:", "--dest", str(BUILD), f"openai=={VERSION}"],
        check=True,
    )
    with tarfile.open(BUILD / f"openai-{VERSION}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")
    wanted = ["--requirement", str(HERE / "requirements.txt"), f"{SOURCE}[aiohttp]"]
    subprocess.run([*pip, "install", *quiet, "--no-compile", *wanted], check=True)
    (BUILD / "venv" / VERSION).touch()


def run_suite() -> int:
    install()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "tests.contract.openai_suite.server", home]
        server = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            environment = {**os.environ, "TEST_API_BASE_URL": f"{url}/v1", "PYTHONPATH": f"{SOURCE / 'src'}:{HERE}"}
            options = ["-q", "-n", "0", "-p", "plugin", "-p", "no:cacheprovider", "-W", "ignore", "--durations=1"]
            tests = [f"tests/api_resources/{name}" for name in RESOURCES]
            run = [str(PYTHON), "-m", "pytest", *options, *tests]
            return subprocess.run(run, cwd=SOURCE, env=environment, check=False).returncode
        finally:
            server.stdin.close()
            server.wait(20)


if __name__ == "__main__":
    sys.exit(run_suite())
