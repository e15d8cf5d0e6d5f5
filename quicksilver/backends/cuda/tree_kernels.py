"""What may stand at each drafted place, and which of it a tree takes: parts of the kernels around a round's forwards.

A canvas says of every place how likely each token is there, whatever stands at the others. So the likeliest beginnings
of what follows are those whose tokens' probabilities have the largest products, and a beginning is never likelier than
the shorter one that it goes on from: taken one after the other, the likeliest first, they make a tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

NUM_CHOICES = 8
"""Tokens listed for a place: the draft's, the canvas's first where another was recalled, and its next six."""
_CHOICES = tl.constexpr(NUM_CHOICES)
_RECALLED = tl.constexpr(0.99)
"""How likely a recalled token is believed to be right, whatever the canvas says: so a tree takes the whole of what was
recalled before it takes much else."""
_REPEATED = tl.constexpr(0.1)
"""What is left of a token's chance behind itself. Places that do not know each other propose the same word twice; a
model that reads what it wrote seldom does."""


@triton.jit
def list_choices(own, drafted, is_recalled, confidence, runners_up, num_rows, choices, k, K: tl.constexpr):
    """Into `choices` (2, K, NUM_CHOICES) the tokens of every place and their chances, 0 where there is none. `own` and
    `drafted` are the draft before and after recall, `confidence` bits of fp32."""
    sure = confidence.to(tl.float32, bitcast=True)
    c = tl.arange(0, _CHOICES)[None, :]
    at = runners_up + tl.maximum(2 * (c - 2), 0) * num_rows + k[:, None]
    is_next = (c >= 2) & (k < K - 1)[:, None]
    token = tl.load(at, mask=is_next, other=-1)
    chance = tl.load(at + num_rows, mask=is_next, other=0).to(tl.float32, bitcast=True)
    token = tl.where(c == 0, drafted[:, None], tl.where(c == 1, own[:, None], token))
    chance = tl.where(c < 2, sure[:, None], chance)
    chance = tl.where((c == 0) & is_recalled[:, None], tl.maximum(chance, _RECALLED), chance)
    is_one = (token >= 0) & ((c == 0) | (token != drafted[:, None])) & (k < K - 1)[:, None]
    out = choices + k[:, None] * _CHOICES + c
    tl.store(out, token, mask=(k < K)[:, None])
    chance = tl.where(is_one, chance, 0.0)
    tl.store(out + K * _CHOICES, chance.to(tl.int32, bitcast=True), mask=(k < K)[:, None])


@triton.jit
def grown(choices, root, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """-> by row: token, row before, depth and the bits of the way. Row 0 is `root`; each further one is the likeliest
    token that is not taken yet, behind one that is. Depth -1 where nothing was left to take."""
    i, c, k = tl.arange(0, BLOCK), tl.arange(0, _CHOICES), tl.arange(0, BLOCK_K)
    at = choices + k[:, None] * _CHOICES + c[None, :]
    tokens = tl.load(at, mask=(k < K)[:, None], other=-1)
    chances = tl.load(at + K * _CHOICES, mask=(k < K - 1)[:, None], other=0).to(tl.float32, bitcast=True)
    token, before = tl.where(i == 0, root, 0), tl.zeros((BLOCK,), tl.int32)
    depth, line = tl.where(i == 0, 0, -1), tl.where(i == 0, 1, 0)
    score = tl.where((i == 0)[:, None], _behind(tokens, chances, k, 0, root)[None, :], 0.0)
    for n in range(1, ROWS):
        best, choice = tl.max(score, 1, return_indices=True)
        top, source = tl.max(best, 0, return_indices=True)
        is_source = i == source
        # One sum finds two small numbers.
        found = tl.sum(tl.where(is_source, choice * 64 + depth, 0), 0)
        which, place = found // 64, found % 64
        taken = tl.sum(tl.sum(tl.where((k == place)[:, None] & (c == which)[None, :], tokens, 0), 1), 0)
        score = tl.where(is_source[:, None] & (c == which)[None, :], 0.0, score)
        is_new = i == tl.where(top > 0.0, n, -1)
        token, before = tl.where(is_new, taken, token), tl.where(is_new, source, before)
        way = tl.sum(tl.where(is_source, line, 0), 0)
        depth, line = tl.where(is_new, place + 1, depth), tl.where(is_new, way | bits(i), line)
        score = tl.where(is_new[:, None], top * _behind(tokens, chances, k, place + 1, taken)[None, :], score)
    return token, before, depth, line


@triton.jit
def _behind(tokens, chances, k, place, before):
    """(NUM_CHOICES,): how likely each token of a place is behind the token `before`."""
    is_place = (k == place)[:, None]
    chance = tl.where(tokens == before, _REPEATED * chances, chances)
    return tl.sum(tl.where(is_place, chance, 0.0), 0)


@triton.jit
def bits(i):
    """1 << i as int32, whose last bit is its sign."""
    return (tl.full(i.shape, 1, tl.int64) << i).to(tl.int32)


@triton.jit
def proved(said, token, depth, line, i):
    """-> how many drafted tokens are right, and the row of the last of them. `said` is what the causal model says
    behind the row before each row. Rows behind one token are different, so at most one of them is right."""
    is_wrong = (i > 0) & (depth >= 0) & (said != token)
    wrong = tl.sum(tl.where(is_wrong, bits(i), 0), 0)
    right = tl.where((depth >= 0) & ((line & wrong) == 0), depth, -1)
    return tl.max(right, 0), tl.argmax(right, 0)
