"""The two rich consoles: results go to standard output, everything else to standard error.

Rich reads text in square brackets as markup. A value such as a path, a model name or a message must be passed through
`escape` if it is printed with markup.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.status import Status

out = Console()
errors = Console(stderr=True)


def print_error(message: str) -> None:
    """Print `error` and the message, unchanged, as one line that the terminal wraps."""
    errors.print(f"[bold red]error[/] {escape(message)}", soft_wrap=True)


def loading(model: str) -> Status:
    """A line on standard error that says that the model is being loaded, while the block runs."""
    return errors.status(f"loading {escape(model)}")
