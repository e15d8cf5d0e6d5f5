"""Fixtures shared with other packages are defined in `tests/support`."""

from tests.support.text_fixtures import born, naughty_strings, qwen, shared, smollm2, tiny, tokenizer

__all__ = ["born", "naughty_strings", "qwen", "shared", "smollm2", "tiny", "tokenizer"]
