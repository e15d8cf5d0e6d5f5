"""The `quicksilver` command: parses, wires, prints; nothing else. torch is imported inside the verbs that need it."""

from quicksilver.cli.app import main

__all__ = ["main"]
