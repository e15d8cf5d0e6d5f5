"""The two rich consoles: results go to standard output, everything else to standard error."""

from __future__ import annotations

from rich.console import Console

out = Console()
errors = Console(stderr=True)
