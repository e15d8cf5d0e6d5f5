"""Map-reduce summary: the parts of a long document are summarised in parallel, then the summaries are joined.

A document longer than the model's context is split at paragraphs. Each part is one request; the last request reads the
summaries of all parts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from examples.measure import Chat, compare, connect, parser

DOCUMENT = Path(__file__).parents[1] / "docs/concepts/decoding.md"


@dataclass(frozen=True)
class Summary:
    parts: list[str]
    text: str


def split(document: str, num_chars: int) -> list[str]:
    """Parts of whole paragraphs. A part is longer than `num_chars` only if one paragraph is."""
    parts = [""]
    for paragraph in document.split("\n\n"):
        if parts[-1] and len(parts[-1]) + len(paragraph) > num_chars:
            parts.append("")
        parts[-1] += paragraph + "\n\n"
    return [part.strip() for part in parts]


def summarise(chat: Chat, text: str, max_tokens: int) -> str:
    return chat.ask(f"{text}\n\nSummarise this text in one sentence.", max_tokens=max_tokens).content or ""


def run(chat: Chat, document: str, num_chars: int = 2000, num_parallel: int = 4) -> Summary:
    with ThreadPoolExecutor(num_parallel) as pool:
        parts = list(pool.map(lambda part: summarise(chat, part, 48), split(document, num_chars)))
    return Summary(parts, summarise(chat, "\n".join(parts), 96))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--file", type=Path, default=DOCUMENT)
    options.add_argument("--chars", type=int, default=2000, help="characters of a part")
    arguments = options.parse_args()
    document = arguments.file.read_text()
    summary = compare(connect(arguments), lambda chat: run(chat, document, arguments.chars))
    for part in summary.parts:
        print(f"- {part}")
    print(f"{len(document)} characters in {len(summary.parts)} parts: {summary.text}")


if __name__ == "__main__":
    main()
