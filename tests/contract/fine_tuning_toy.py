"""`python -m tests.contract.fine_tuning_toy`: the examples of docs/guides/fine-tuning.md against `quicksilver serve`.

Serves a toy model with a real engine and a real trainer, and runs the examples with openai-python: the model learns its
task, is asked under its own name, and its archive is uploaded again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.live import serving_process
from tests.support.tuning import write_base

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "fine-tuning.md"
# Waits for the import.
LAST = """
while job.status not in ("succeeded", "failed"):
    job = client.fine_tuning.jobs.retrieve(job.id)
print("import", job.status, job.error)
"""


def examples() -> tuple[str, str, str]:
    """The blocks that train, ask and upload."""
    train, ask, upload = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return train, ask, upload


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        os.environ["QUICKSILVER_HOME"] = str(home)
        base = write_base(Path(folder) / "toy")
        flags = ("--api-processes", "1", "--context-len", "1024")
        with serving_process(home / "log", *flags, model=str(base.weights)) as (url, _):
            code = "".join((*examples(), LAST))
            done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "URL": url, "MODEL": "toy"})
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
