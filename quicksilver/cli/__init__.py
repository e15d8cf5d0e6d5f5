"""The `quicksilver` command line. Each command imports torch only if it needs it."""

from quicksilver.cli.app import main

__all__ = ["main"]
