"""Write the lock files from pyproject.toml, with the hashes of every file of every package: `make lock`.

    requirements.lock      what the server needs, and what builds the editable install
    requirements-dev.lock  the same, and what tests, checks and documentation need
    tests/contract/clients/requirements.lock  third-party clients, which have an environment of their own
    tests/contract/clients/frameworks/*.lock  agent frameworks and harnesses, aider, guidellm: their pins conflict

One lock covers Python 3.11 to 3.13 on x86_64 and aarch64. torch and the CUDA packages that it depends on are left out:
the CPU index and PyPI publish different files under one version, so the Makefile installs torch in a step of its own
(docs/design/decisions/0005-installing-torch.md). Versions already in a lock file stay; `--upgrade` takes the newest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / ".build/uv/bin/uv"
UV_VERSION = "0.13.7"
CLIENTS = "tests/contract/clients"
FRAMEWORKS = f"{CLIENTS}/frameworks"
TORCH_AND_CUDA = re.compile(r"(torch|triton|cuda-[\w-]+|nvidia-[\w-]+)==")


def install_uv() -> None:
    if not UV.exists():
        subprocess.run([sys.executable, "-m", "venv", UV.parents[1]], check=True)
        pip = [UV.parent / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"uv=={UV_VERSION}"], check=True)


def compile_lock(name: str, *sources_and_options: str) -> None:
    command = [UV, "pip", "compile", *sources_and_options, "--universal", "--python-version", "3.11", *sys.argv[1:]]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet", "--output-file", name]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    path = ROOT / name
    entries = re.split(r"\n(?=[a-z0-9])", path.read_text().rstrip("\n"))
    path.write_text("".join(f"{entry}\n" for entry in entries if not TORCH_AND_CUDA.match(entry)))


def main() -> None:
    install_uv()
    project = ("pyproject.toml", "--group", "build")
    compile_lock("requirements.lock", *project)
    compile_lock("requirements-dev.lock", *project, "--extra", "dev", "--constraint", "requirements.lock")
    compile_lock(f"{CLIENTS}/requirements.lock", f"{CLIENTS}/requirements.txt")
    for name in ("requirements", "aider", "guidellm"):
        compile_lock(f"{FRAMEWORKS}/{name}.lock", f"{FRAMEWORKS}/{name}.txt")


if __name__ == "__main__":
    main()
