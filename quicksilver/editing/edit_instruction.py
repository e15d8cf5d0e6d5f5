"""The prompt for a next edit as an instruction, for chat models without special tokens for edits. The region is the
lines that the model rewrites.

Wording and examples are the best of eight variants on edits outside the evaluations: they continue a change and leave
the rest unchanged most reliably (dev/log.md). The region is separate from its file, because tags inside the file were
copied into answers. Pure functions of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from quicksilver.editing.edit_request import EditRequest
from quicksilver.text.conversation import Message

# Text that the answer to `edit_messages` is prefilled with, and text at which it stops, for a region without fences.
EDIT_PREFILL, EDIT_STOP = "```\n", "\n```"

_TASK = (
    "A developer made the recent edits above and goes on with the same change. Rewrite the region so that it agrees"
    " with them: use new names in place of old ones, change nothing else. If nothing is left to change, repeat the"
    " region exactly. Answer with the region's code in one fence."
)

_CONTINUES = EditRequest(
    "shop.py",
    "def total(items, tax_rate):\n    amount = 0\n",
    "    for item in items:\n        amount += item.price\n    return amount * (1 + tax)",
    "\n",
    history=("--- shop.py\n+++ shop.py\n@@ -1,1 +1,1 @@\n-def total(items, tax):\n+def total(items, tax_rate):",),
)
_UNCHANGED = EditRequest(
    "shop.py",
    "def total(items, tax_rate):\n",
    "    amount = sum(item.price for item in items)\n    return amount * (1 + tax_rate)",
    "\n",
    history=(
        "--- shop.py\n+++ shop.py\n@@ -3,1 +3,1 @@\n"
        "-    return amount * (1 + tax)\n+    return amount * (1 + tax_rate)",
    ),
)
_EXAMPLES = ((_CONTINUES, _CONTINUES.region.replace("tax)", "tax_rate)")), (_UNCHANGED, _UNCHANGED.region))


def edit_messages(request: EditRequest) -> list[Message]:
    """Two worked examples, then the request. The answer is prefilled with the first of `edit_fence`."""
    turns: list[Message] = []
    for example, answer in _EXAMPLES:
        turns += [Message("user", _question(example)), Message("assistant", f"{EDIT_PREFILL}{answer}{EDIT_STOP}")]
    return [*turns, Message("user", _question(request))]


def edit_fence(request: EditRequest) -> tuple[str, str]:
    """The prefill and the stop text of an answer. The fence is longer than the fences in the region, which would end
    the answer too early."""
    longest = max(map(len, re.findall("`{3,}", request.region)), default=0)
    more = "`" * max(longest - 2, 0)
    return more + EDIT_PREFILL, EDIT_STOP + more


def _question(request: EditRequest) -> str:
    return "\n\n".join(_parts(request))


def _parts(request: EditRequest) -> Iterator[str]:
    for snippet in request.snippets:
        yield f"{snippet.path}:\n{snippet.code}"
    for diff in request.history:
        yield f"Recent edit:\n```diff\n{diff}\n```"
    opening, closing = edit_fence(request)
    yield f"{request.path}:\n{opening}{request.before}{request.region}{request.after}{closing}"
    yield f"Region to rewrite:\n{opening}{request.region}{closing}"
    yield _TASK
