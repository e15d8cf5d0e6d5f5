"""Draw the pictures of decoding from a recorded answer of nano.

    python tools/pictures.py --record   answers one prompt with nano and writes docs/images/answer.json
    python tools/pictures.py            draws the pictures from that file
    python tools/pictures.py --check    fails where a picture does not follow from that file

Nothing is invented: each token, confidence and forward in a picture is in the recording.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.sections import ROOT, write_pages
from tools.svg import text

IMAGES = ROOT / "docs/images"
RECORDING = IMAGES / "answer.json"
PROMPT = "Write a Python function that returns the larger of two numbers."
CANVAS_LEN = 16
WIDTH, CHAR, LINE, LEFT, TOP = 760, 9.0, 26, 24, 74
FRAME_S, LAST_FRAME_S = 1.1, 4.0
Step = dict[str, Any]

STYLE = """<style>
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre; }
.small { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #59636e; }
.head { font: 600 14px system-ui, -apple-system, "Segoe UI", sans-serif; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.draft { fill: #ddf4ff; } .new { fill: #dafbe1; } .mask { fill: #eff2f5; } .wrong { fill: #ffebe9; }
.rejected { text-decoration: line-through; fill: #82071e; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9198a1; } .page { fill: #0d1117; stroke: #3d444d; }
.draft { fill: #0c2d6b; } .new { fill: #033a16; } .mask { fill: #262c36; } .wrong { fill: #490202; }
.rejected { fill: #ffa198; }
}
</style>"""


def record() -> None:
    """Answer the prompt with nano under `verify` and keep what each forward committed and drafted."""
    from quicksilver.core import DecodeParams, DecoderParams
    from quicksilver.llm import LLM

    llm = LLM("nano")
    params = DecodeParams(max_new_tokens=96, decoder=DecoderParams(canvas_len=CANVAS_LEN))
    word, ends = llm.tokenizer.token_text, set(llm.tokenizer.eos_ids)
    steps: list[Step] = []
    for piece in llm.frames(llm.chat_prompt(PROMPT), params):
        if piece.delta is not None:
            steps.append({"committed": [word(i) for i in piece.delta.token_ids], "draft": []})
        if piece.frame is not None and steps:
            guesses = zip(piece.frame.token_ids, piece.frame.confidence, strict=True)
            steps[-1]["draft"] = [["" if i in ends else word(i), round(c, 2)] for i, c in guesses]
    recording = {"model": "nano", "prompt": PROMPT, "decoder": "verify", "canvas_len": CANVAS_LEN, "steps": steps}
    RECORDING.write_text(json.dumps(recording, indent=1) + "\n")


class Sheet:
    """Places tokens as a terminal would, line by line, and collects the SVG elements."""

    def __init__(self, left: float = LEFT, top: float = TOP) -> None:
        self.parts: list[str] = []
        self.left, self.top, self.column, self.line = left, top, 0, 0

    def put(self, token: str, box: str = "", kind: str = "", opacity: float = 1.0) -> None:
        for index, part in enumerate(token.split("\n")):
            if index:
                self.line, self.column = self.line + 1, 0
            if part:
                self._put_run(part, box, kind, opacity)

    def _put_run(self, run: str, box: str, kind: str, opacity: float) -> None:
        x, y = self.left + self.column * CHAR, self.top + self.line * LINE
        if box:
            width = len(run) * CHAR
            self.parts.append(
                f'<rect class="{box}" x="{x:g}" y="{y - 16:g}" width="{width - 1:g}" height="21" rx="3"/>'
            )
        name = f' class="{kind}"' if kind else ""
        fade = f' opacity="{opacity:.2f}"' if opacity < 1 else ""
        length = f' textLength="{len(run) * CHAR:g}" lengthAdjust="spacing"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{name}{fade}{length}>{escape(run)}</text>')
        self.column += len(run)


def shown_draft(step: Step) -> list[tuple[str, float]]:
    """The drafted tokens up to the first end-of-answer token."""
    shown = []
    for token, confidence in step["draft"]:
        if not token:
            break
        shown.append((token, confidence))
    return shown


def frames(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """The pictures of the animation: a caption and elements for each forward."""
    done: list[str] = []
    for number, step in enumerate(steps, 1):
        sheet = Sheet()
        for token in done:
            sheet.put(token)
        for token in step["committed"]:
            sheet.put(token, box="new")
        for token, confidence in shown_draft(step):
            sheet.put(token, box="draft", opacity=0.35 + 0.65 * confidence)
        done += step["committed"]
        what = "a draft of the next tokens" if step["draft"] else "the draft is verified"
        yield f"forward {number}: {what}, {len(done)} tokens are final", "\n".join(sheet.parts)


def animation(recording: dict[str, Any]) -> str:
    steps = recording["steps"]
    shown = list(frames(steps))
    answer = [token for step in steps for token in step["committed"]]
    sheet = Sheet()
    for token in answer:
        sheet.put(token)
    shown.append((f"{len(answer)} tokens in {len(steps)} forwards", "\n".join(sheet.parts)))
    total = FRAME_S * (len(shown) - 1) + LAST_FRAME_S
    height = TOP + 8 * LINE
    body = [f'<rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>']
    body += [
        text(LEFT, 30, recording["prompt"], "head"),
        text(WIDTH - LEFT, 30, "nano, decoder verify", "small", "end"),
    ]
    rules = [f".f {{ opacity: 0; animation: {total:g}s step-end infinite; }}"]
    for index, (caption, parts) in enumerate(shown):
        start = 100 * FRAME_S * index / total
        end = 100 * FRAME_S * (index + 1) / total if index < len(shown) - 1 else 100
        before = "" if index == 0 else "0% { opacity: 0 } "
        rules.append(f"@keyframes k{index} {{ {before}{start:.2f}% {{ opacity: 1 }} {end:.2f}% {{ opacity: 0 }} }}")
        rules.append(f"#f{index} {{ animation-name: k{index}; }}")
        body.append(f'<g class="f" id="f{index}">\n{parts}\n{text(LEFT, height - 18, caption, "small")}\n</g>')
    last = f"#f{len(shown) - 1}"
    rules.append(f"@media (prefers-reduced-motion: reduce) {{ .f {{ animation: none; }} {last} {{ opacity: 1; }} }}")
    return svg(height, "\n".join(["<style>", *rules, "</style>", *body]))


def svg(height: float, body: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}">'
    )
    return f"{head}\n{STYLE}\n{body}\n</svg>\n"


def one_line(token: str) -> str:
    return token.replace("\n", "\\n")


def first_canvas(recording: dict[str, Any]) -> str:
    """The canvas after the first forward: the first positions, each token above its confidence."""
    step = recording["steps"][0]
    sheet, notes = Sheet(top=84), []
    for token in step["committed"]:
        sheet.put(one_line(token), box="new")
    for token, confidence in shown_draft(step)[:11]:
        notes.append(
            text(sheet.left + sheet.column * CHAR + 2, 108, f"{confidence:.2f}"[1:] if confidence < 1 else "1", "small")
        )
        sheet.put(f"{one_line(token):<3}", box="draft", opacity=0.35 + 0.65 * confidence)
        sheet.column += 1
    head = text(LEFT, 30, "The first positions of the canvas after one forward", "head")
    note = text(
        LEFT, 52, "green: final; blue: drafted together in the same forward, with the confidence of each", "small"
    )
    return svg(124, "\n".join([head, note, *sheet.parts, *notes]))


def rounds(recording: dict[str, Any]) -> str:
    """Each round on two lines: the draft, and what verification kept of it."""
    steps, parts = recording["steps"], [text(LEFT, 30, "The rounds of one answer", "head")]
    y = 62
    for number, (draft, verified) in enumerate(zip(steps[::2], steps[1::2], strict=False), 1):
        parts.append(text(LEFT, y, f"round {number}", "small"))
        drafting, kept = Sheet(left=100, top=y), Sheet(left=100, top=y + 26)
        accepted = count_accepted(draft, verified)
        for token in draft["committed"]:
            drafting.put(one_line(token), box="new")
        for index, (token, confidence) in enumerate(shown_draft(draft)[: accepted + 4]):
            is_kept = index < accepted
            drafting.put(
                one_line(token),
                "draft" if is_kept else "wrong",
                "" if is_kept else "rejected",
                0.35 + 0.65 * confidence,
            )
        for index, token in enumerate(verified["committed"]):
            kept.put(one_line(token), box="draft" if index < accepted else "new")
        parts += [*drafting.parts, *kept.parts]
        y += 68
    note = "green: computed by the base model; blue: drafted and accepted; red: drafted and rejected (the first four)"
    parts.append(text(LEFT, y - 8, note, "small"))
    return svg(y + 10, "\n".join(parts))


def count_accepted(draft: Step, verified: Step) -> int:
    pairs = zip([token for token, _ in draft["draft"]], verified["committed"], strict=False)
    count = 0
    for drafted, committed in pairs:
        if drafted != committed:
            break
        count += 1
    return count


def main() -> int:
    if "--record" in sys.argv:
        record()
    recording = json.loads(RECORDING.read_text())
    pictures = {"resolving.svg": animation, "canvas.svg": first_canvas, "rounds.svg": rounds}
    return write_pages({}, {IMAGES / name: draw(recording) for name, draw in pictures.items()})


if __name__ == "__main__":
    sys.exit(main())
