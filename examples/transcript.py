"""Clean-up of dictated text with `prediction`: the expected text is the transcript without its filler words.

The answer is the same with and without the prediction. With it, drafts are copied from the expected text, so an answer
that follows it takes fewer rounds.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from examples.measure import Chat, compare, connect, parser

FILLERS = re.compile(r"\b(?:um|uh|er|you know|I mean),? ")
TRANSCRIPTS = (
    "Um, we should uh move the meeting to Thursday, you know, because er the room is taken on Wednesday.",
    "So the invoice, um, was paid twice and uh we need to, I mean, refund the second payment before Friday.",
    "The new office has er four rooms and um a kitchen, and you know, the rent is lower than before.",
)


@dataclass(frozen=True)
class Cleaned:
    """A clean text and the cost of writing it with and without the prediction."""

    text: str
    is_same_without: bool
    rounds: int
    rounds_without: int
    accepted: int


def clean(chat: Chat, transcript: str, expected: str | None = None) -> str:
    prompt = f"Repeat this text without the filler words um, uh, er, you know and I mean:\n{transcript}"
    prediction = {"prediction": {"type": "content", "content": expected}} if expected else {}
    return chat.ask(prompt, max_tokens=64, **prediction).content or ""


def both_ways(chat: Chat, transcript: str) -> Cleaned:
    plain = clean(chat, transcript)
    text = clean(chat, transcript, FILLERS.sub("", transcript))
    without, with_prediction = (reply.usage for reply in chat.replies[-2:])
    return Cleaned(
        text,
        text == plain,
        with_prediction.model_extra["quicksilver"]["rounds"],
        without.model_extra["quicksilver"]["rounds"],
        with_prediction.completion_tokens_details.accepted_prediction_tokens,
    )


def run(chat: Chat) -> list[Cleaned]:
    return [both_ways(chat, transcript) for transcript in TRANSCRIPTS]


def seconds(chat: Chat, is_predicted: bool) -> float:
    start = time.perf_counter()
    for transcript in TRANSCRIPTS:
        clean(chat, transcript, FILLERS.sub("", transcript) if is_predicted else None)
    return time.perf_counter() - start


def main() -> None:
    chat = connect(parser(__doc__).parse_args())
    for cleaned in compare(chat, run):
        equal = "same" if cleaned.is_same_without else "other"
        print(f"{cleaned.text}\n  rounds {cleaned.rounds_without} without, {cleaned.rounds} with the prediction")
        print(f"  {cleaned.accepted} predicted tokens accepted; {equal} text without the prediction")
    print(f"time without / with the prediction: {seconds(chat, False) / seconds(chat, True):.2f}")


if __name__ == "__main__":
    main()
