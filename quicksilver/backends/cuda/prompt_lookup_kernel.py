"""`diffusion.verify.lookup` on the device: drafts copied from an earlier place of the text."""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.diffusion.verify import MIN_CANVAS_CONFIDENCE, NGRAM_LEN, WINDOW

_WINDOW = tl.constexpr(WINDOW)
_MIN_CONFIDENCE = tl.constexpr(MIN_CANVAS_CONFIDENCE)
_BLOCK = tl.constexpr(1024)
assert NGRAM_LEN == 4, "the kernel compares four tokens"


@triton.jit
def apply_prompt_lookup(text, end, draft, confidence, k, COUNT: tl.constexpr):
    """-> `draft` (k < COUNT) with the tokens that followed the latest earlier match of the four tokens up to position
    `end`, and a mask of the tokens that were replaced. `confidence` are fp32 bits; a token that the canvas is sure of
    ends the replacement. Stores of this launch into `text` need a barrier before this call."""
    t0, t1 = tl.load(text + tl.maximum(end - 3, 0)), tl.load(text + tl.maximum(end - 2, 0))
    t2, t3 = tl.load(text + tl.maximum(end - 1, 0)), tl.load(text + tl.maximum(end, 0))
    num_matches = end - 3
    match_at = -1
    for start in range(tl.maximum(end + 1 - _WINDOW, 0), num_matches, _BLOCK):
        p = start + tl.arange(0, _BLOCK)
        is_candidate = p < num_matches
        at = text + p
        is_same = (tl.load(at, mask=is_candidate, other=-1) == t0) & (
            tl.load(at + 1, mask=is_candidate, other=-1) == t1
        )
        is_same &= (tl.load(at + 2, mask=is_candidate, other=-1) == t2) & (
            tl.load(at + 3, mask=is_candidate, other=-1) == t3
        )
        match_at = tl.maximum(match_at, tl.max(tl.where(is_same & is_candidate, p, -1), 0))
    source = match_at + 4 + k
    is_found = (match_at >= 0) & (source <= end) & (k < COUNT)
    found = tl.load(text + source, mask=is_found, other=-1)
    is_different = is_found & (found != draft)
    is_rejected = is_different & ((confidence.to(tl.float32, bitcast=True) >= _MIN_CONFIDENCE) | (k == 0))
    count = tl.min(tl.where(is_rejected, k, COUNT), 0)
    from_lookup = is_found & (k < count)
    return tl.where(from_lookup, found, draft), from_lookup
