"""Writes the table of diffusion families and their features, from the records in `quicksilver.model.families`."""

from __future__ import annotations

import sys

from quicksilver.core import DecoderName
from quicksilver.dialect import ContextKind, Dialect
from quicksilver.model.families import FAMILIES
from tools.sections import ROOT, table, write_pages

PAGE = ROOT / "docs/reference/families/index.md"
PAGES = {
    "sdar": "sdar", "sdar-moe": "sdar", "llada2": "llada2", "diffusion-gemma": "diffusion-gemma",
    "nemotron-labs-diffusion": "nemotron",
    "fast-dllm-v2": "fast-dllm", "efficient-dlm": "other-block", "stable-diffcoder": "other-block",
    "tiny-a2d": "other-block", "i-dlm": "i-dlm", "wedlm-7b": "wedlm", "wedlm-8b": "wedlm", "llada": "llada",
    "dream": "dream",
}  # fmt: skip
# Families whose layers the compiled CPU backend does not have.
NOT_COMPILED = ("sdar-moe", "llada2", "diffusion-gemma", "nemotron-labs-diffusion")


def support_table() -> str:
    header = ("family", "class", "context", "block", "decoders, default first", "exact cache", "scoring", "CPU int8")
    return table(header, [_row(name, FAMILIES[name].dialect({}, name)) for name in PAGES])


def _row(name: str, dialect: Dialect) -> tuple[str, ...]:
    decoders = sorted(dialect.decoders, key=lambda decoder: decoder is not dialect.default.name)
    return (
        f"[{name}]({PAGES[name]}.md)",
        f"`{FAMILIES[name].architecture}`",
        dialect.context.value,
        str(dialect.block_len or (dialect.default.canvas_len if dialect.noise_vocab else "any")),
        ", ".join(f"`{decoder}`" for decoder in decoders),
        "no" if dialect.context is ContextKind.FULL else "yes",
        "yes" if DecoderName.AR in dialect.decoders else "no",
        "no" if name in NOT_COMPILED else "yes",
    )


if __name__ == "__main__":
    sys.exit(write_pages({PAGE: {"support": support_table()}}))
