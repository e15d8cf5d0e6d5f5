"""Answers of the scripted engine in the playground tests, chosen by the last user message.

`echo: X` answers X. A few key words request a long answer, an unfinished one, a tool call or JSON. Code prompts get the
completion that the page's examples expect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache

from quicksilver.core import Frame, Request
from quicksilver.text.tokenizer import Tokenizer
from tests.support.fake_engine import Step
from tests.web.denoising import Score, denoise
from tests.web.word_tokenizer import word_tokenizer

ANSWER = """A diffusion model starts from **masks** and settles many tokens at once.

```python
def resolve(canvas):
    while canvas.has_masks:
        canvas = denoise(canvas)  # several tokens a forward
    return canvas
```

1. Draft the whole canvas
2. Keep what is sure
3. Go on behind it

Every position of the canvas is guessed in the same pass, so a forward that costs one token of an ordinary model can
settle five or six here. What is unsure stays open for the next pass.
"""
PERSON = '{"name": "Ada", "age": 36, "city": "Oslo"}'
FREE = ("Ada", "36", "Oslo")
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
WEATHER = "It is 7 degrees in Oslo."
NEXT_EDIT = """def read(path):
    log.info('read %s', path)

    return open(path).read()


def write(path, text):
    log.info('write %s', path)
    open(path, 'w').write(text)
"""
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LONG = "".join(f"- item {i}: some *words* and `code` for the list\n" for i in range(2000))


@cache
def stage_tokenizer() -> Tokenizer:
    # The text is doubled, because a pair of bytes must occur twice before it becomes a token.
    return word_tokenizer([ANSWER, ANSWER, PERSON, WEATHER, NEXT_EDIT, LONG[:1000]])


def perform(request: Request) -> Iterable[Step]:
    tokenizer = stage_tokenizer()
    prompt = "".join(tokenizer.token_text(i) for i in request.prompt_ids)
    text = reply_to(prompt)
    ids = tokenizer.encode_markup(text)
    others = [tokenizer.encode(letter)[0] for letter in "ea"]
    if "wait_for_it" in prompt:
        return [wait_for_ever]
    pause_s = 0.0 if "echo:" in prompt else 0.02
    steps = denoise(request, Score(ids, others, forced_in(text, ids), pause_s))
    return [*opening(steps), wait_for_ever] if "take your time" in last_turn(prompt) else steps


def opening(steps: list[Step]) -> list[Step]:
    """The first half of an answer, up to an open canvas."""
    half = steps[: len(steps) // 2]
    last = max(i for i, step in enumerate(half) if isinstance(step, Frame) and step.token_ids)
    return half[: last + 1]


def reply_to(prompt: str) -> str:
    if "<|fim_middle|>" in prompt:
        return f"return {HOSTILE!r}" if "hostile" in prompt else "return n % 2 == 0"
    if "<|code_to_edit|>" in prompt or "files.py" in prompt:
        if "log.info('write %s'" in prompt:
            # Both edits were accepted: the region begins five lines above the cursor and stays as it is.
            return "".join(NEXT_EDIT.splitlines(keepends=True)[2:])
        return NEXT_EDIT.replace("'write %s'", f"'{HOSTILE}'") if "hostile" in prompt else NEXT_EDIT
    return reply_in_chat(last_turn(prompt))


def reply_in_chat(said: str) -> str:
    if said.startswith("echo:"):
        return said.removeprefix("echo:").strip()
    if "long answer" in said:
        return LONG
    if "degrees" in said:
        return WEATHER
    if "weather" in said:
        return CALL
    return PERSON if "as JSON" in said else ANSWER


def last_turn(prompt: str) -> str:
    """The text of the last message, without its role."""
    turn = prompt.rpartition("<|im_end|>")[0].rpartition("<|im_start|>")[2]
    return turn.partition("\n")[2]


def forced_in(text: str, ids: Sequence[int]) -> set[int]:
    """Positions that a grammar would force: everything outside the values."""
    if text != PERSON:
        return set()
    free = {i for value in FREE for i in range(text.index(value), text.index(value) + len(value))}
    forced, start = set(), 0
    for position, token_id in enumerate(ids):
        end = start + len(stage_tokenizer().token_text(token_id))
        if free.isdisjoint(range(start, end)):
            forced.add(position)
        start = end
    return forced


async def wait_for_ever() -> None:
    await asyncio.Event().wait()
