"""What the stages of a recipe import."""

from __future__ import annotations

import subprocess
import sys


def test_stages_after_the_preparation_import_no_code_for_text() -> None:
    """A machine that trains needs prepared ids only."""
    program = "import sys, quicksilver.training.stages; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"quicksilver.text", "quicksilver.editing", "tokenizers"} & set(done.stdout.split())
