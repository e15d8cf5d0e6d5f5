"""`diffusion/prompt_lookup.py` on the device: what a sequence's text recalls, for the kernels of a round."""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.diffusion.prompt_lookup import MIN_CANVAS_CONFIDENCE, NGRAM_LEN, WINDOW

_WINDOW = tl.constexpr(WINDOW)
_SURE = tl.constexpr(MIN_CANVAS_CONFIDENCE)
_BLOCK = tl.constexpr(1024)
assert NGRAM_LEN == 4, "the kernel compares four tokens"


@triton.jit
def recalled(text, end, draft, confidence, k, COUNT: tl.constexpr):
    """-> `draft` (k < COUNT), whose `confidence` are bits of fp32, or what followed the latest earlier place of the
    four tokens up to position `end`; and which tokens are recalled. Whatever this launch stored of `text` must be
    behind a barrier."""
    a, b = tl.load(text + tl.maximum(end - 3, 0)), tl.load(text + tl.maximum(end - 2, 0))
    c, d = tl.load(text + tl.maximum(end - 1, 0)), tl.load(text + tl.maximum(end, 0))
    num_places = end - 3
    place = -1
    for start in range(tl.maximum(end + 1 - _WINDOW, 0), num_places, _BLOCK):
        p = start + tl.arange(0, _BLOCK)
        is_place = p < num_places
        at = text + p
        is_same = (tl.load(at, mask=is_place, other=-1) == a) & (tl.load(at + 1, mask=is_place, other=-1) == b)
        is_same &= (tl.load(at + 2, mask=is_place, other=-1) == c) & (tl.load(at + 3, mask=is_place, other=-1) == d)
        place = tl.maximum(place, tl.max(tl.where(is_same & is_place, p, -1), 0))
    from_ = place + 4 + k
    is_there = (place >= 0) & (from_ <= end) & (k < COUNT)
    follows = tl.load(text + from_, mask=is_there, other=-1)
    differs = is_there & (follows != draft)
    is_refuted = differs & ((confidence.to(tl.float32, bitcast=True) >= _SURE) | (k == 0))
    count = tl.min(tl.where(is_refuted, k, COUNT), 0)
    is_recalled = is_there & (k < count)
    return tl.where(is_recalled, follows, draft), is_recalled
