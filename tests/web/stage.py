"""What the scripted engine says in the playground's tests: the last thing the user wrote decides.

`echo: X` answers X; a few key words ask for a long answer, an unfinished one, a tool call or JSON. Code prompts get the
completion that the page's own examples ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quicksilver.core import Request
from tests.fake_engine import Step
from tests.small_tokenizer import small_tokenizer
from tests.web.denoising import denoise

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
"""
PERSON = '{"name": "Ada", "age": 36, "city": "Oslo"}'
FORCED = ('{"name": "', '", "age": ', ', "city": "', '"}')
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
NEXT_EDIT = "def total(items, tax):\n    sum = 0\n    for item in items:\n        sum += item.price\n    return sum * (1 + tax)\n"
LONG_LEN = 2000


def perform(request: Request) -> Iterable[Step]:
    tokenizer = small_tokenizer()
    prompt = "".join(tokenizer.token_text(i) for i in request.prompt_ids)
    text = reply_to(prompt)
    pause_s = 0.0 if "echo:" in prompt else 0.01
    steps = denoise(request, tokenizer.encode_markup(text), forced_in(text), pause_s)
    return [*steps[: len(steps) // 3], wait_for_ever] if "never end" in last_turn(prompt) else steps


def reply_to(prompt: str) -> str:
    if "<|fim_middle|>" in prompt:
        return "return n % 2 == 0"
    if "<|code_to_edit|>" in prompt or "cart.py" in prompt:
        return NEXT_EDIT
    return reply_in_chat(last_turn(prompt))


def reply_in_chat(said: str) -> str:
    if said.startswith("echo:"):
        return said.removeprefix("echo:").strip()
    if "long answer" in said:
        return long_text()
    if "degrees" in said:
        return "It is 7 degrees in Oslo."
    if "weather" in said:
        return CALL
    return PERSON if "as JSON" in said else ANSWER


def last_turn(prompt: str) -> str:
    """The text of the last message, without its role."""
    turn = prompt.rpartition("<|im_end|>")[0].rpartition("<|im_start|>")[2]
    return turn.partition("\n")[2]


def long_text() -> str:
    lines = (f"- item {i}: some *words* and `code` for the list\n" for i in range(LONG_LEN))
    return "".join(lines)[:LONG_LEN]


def forced_in(text: str) -> set[int]:
    """Positions (one token a byte) that a grammar would have determined."""
    if text != PERSON:
        return set()
    starts = ((PERSON.index(part), len(part)) for part in FORCED)
    return {i for start, length in starts for i in range(start, start + length)}


async def wait_for_ever() -> None:
    await asyncio.Event().wait()
