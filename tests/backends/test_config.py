"""Settings of a backend: importable without torch, and derived from the engine's settings."""

from __future__ import annotations

import subprocess
import sys

from quicksilver.backends.config import BackendConfig
from quicksilver.engine.config import EngineConfig


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, quicksilver.backends.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_engine_settings_reach_the_backend() -> None:
    settings = EngineConfig(
        max_rows=64, max_running=3, tree_rows=16, adapter_bytes=2**20, cuda_graphs=False, compile_threads=7
    )
    expected = BackendConfig(
        max_rows=64,
        prompt_rows=64,
        max_sequences=3,
        context_len=2048,
        weights="fp8",
        tree_rows=16,
        adapter_bytes=2**20,
        cuda_graphs=False,
        compile_threads=7,
    )
    assert settings.for_backend(2048, "fp8") == expected
