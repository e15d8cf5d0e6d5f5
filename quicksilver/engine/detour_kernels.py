"""Which detours a draft has, and which of them wins: parts of the kernels around a round's forwards.

A detour leaves the draft at a place, takes another of the canvas's choices there, and goes on with the draft's own
tokens: drafted tokens do not depend on each other. It wins where the draft's first wrong token is at its place and the
causal model's own token there is the detour's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.diffusion.recall import SURE

_RECALLED = tl.constexpr(SURE)
"""How likely a recalled token is believed to be right: the canvas was less sure of another."""


@triton.jit
def choose_detours(
    own, drafted, confidence, runners_up, num_rows, chosen, k,
    K: tl.constexpr, BLOCK: tl.constexpr, DETOURS: tl.constexpr,
):  # fmt: skip
    """Into `chosen` (DETOURS, 2) the likeliest (place, token): that the draft is right up to the place, times the
    token's own probability. A place has the canvas's second and third choice, and the first where a token was recalled
    in its stead. `own` and `drafted` are the draft before and after that, `confidence` bits of fp32."""
    sure = confidence.to(tl.float32, bitcast=True)
    held = tl.where(own != drafted, _RECALLED, sure)
    held = tl.log(tl.maximum(tl.where(k < K - 1, held, 1.0), 1e-9))
    reach = tl.exp(tl.sum(tl.where(k[None, :] < k[:, None], held[None, :], 0.0), 1))
    c = tl.arange(0, 4)[None, :]
    at = runners_up + tl.maximum(2 * (c - 1), 0) * num_rows + k[:, None]
    is_next = (c >= 1) & (c <= 2) & (k < K - 1)[:, None]
    token = tl.where(c == 0, own[:, None], tl.load(at, mask=is_next, other=-1))
    chance = tl.load(at + num_rows, mask=is_next, other=0).to(tl.float32, bitcast=True)
    chance = tl.where(c == 0, sure[:, None], chance)
    is_one = (c < 3) & (token >= 0) & (token != drafted[:, None]) & (k < K - 1)[:, None]
    score = tl.reshape(tl.where(is_one, reach[:, None] * chance, -1.0), (4 * BLOCK,))
    token = tl.reshape(token, (4 * BLOCK,))
    cell = tl.arange(0, 4 * BLOCK)
    for i in tl.static_range(DETOURS):
        best = tl.argmax(score, 0)
        is_there = tl.max(score, 0) > 0.0
        tl.store(chosen + 2 * i, tl.where(is_there, best // 4, -1).to(tl.int32))
        tl.store(chosen + 2 * i + 1, tl.where(is_there, tl.sum(tl.where(cell == best, token, 0), 0), -1))
        score = tl.where(cell == best, -1.0, score)


@triton.jit
def won(detours, proposed, drafted, b, k, K: tl.constexpr, DETOURS: tl.constexpr):
    """-> the place of the draft's first wrong token, and which detour wins there, or -1. `proposed` and `drafted` are
    this sequence's, k < K and k < K - 1."""
    place = tl.min(tl.where((proposed == drafted) & (k < K - 1), K, k), 0)
    right = tl.sum(tl.where(k == place, proposed, 0), 0)
    SLOTS: tl.constexpr = triton.next_power_of_2(DETOURS)
    d = tl.arange(0, SLOTS)
    mine = detours + 2 * (b * DETOURS + d)
    leaves_at = tl.load(mine, mask=d < DETOURS, other=-1)
    takes = tl.load(mine + 1, mask=d < DETOURS, other=-1)
    return place, tl.max(tl.where((leaves_at == place) & (takes == right), d, -1), 0)


@triton.jit
def num_right(tokens, drafted, first, place, k, K: tl.constexpr, LEN: tl.constexpr):
    """How many drafted tokens behind a detour's own its rows confirm. The last row has no row behind it to go on with,
    so what it proposes is a commit's last token in any case."""
    i = k - place - 1
    is_mine = (i >= 0) & (i < LEN - 1) & (k < K - 1)
    says = tl.load(tokens + first + i, mask=is_mine, other=-1)
    return tl.min(tl.where((i < 0) | (is_mine & (says == drafted)), K, i), 0)


@triton.jit
def spliced(
    results, told, detours, proposed, drafted, b, k, num_rows, first_detour,
    K: tl.constexpr, DETOURS: tl.constexpr, LEN: tl.constexpr,
):  # fmt: skip
    """`proposed` and `drafted` along the detour that won, as they are where none did. The same goes into `results` (4,
    num_rows) and into `told`, the draft as the host reads it."""
    place, index = won(detours, proposed, drafted, b, k, K, DETOURS)
    if index >= 0:
        first = first_detour + (b * DETOURS + index) * LEN
        end = place + 1 + num_right(results, drafted, first, place, k, K, LEN)
        is_new = (k > place) & (k <= end)
        right = tl.sum(tl.where(k == place, proposed, 0), 0)
        for column in tl.static_range(4):
            at = results + column * num_rows
            says = tl.load(at + first + k - place - 1, mask=is_new, other=0)
            tl.store(at + b * K + k, says, mask=is_new)
            if column == 0:
                proposed = tl.where(is_new, says, proposed)
        # Rows behind the detour's last saw the draft's wrong token: there the draft must end, right or not.
        is_end = (k == end) & (k < K - 1) & (proposed == drafted)
        drafted = tl.where(k == place, right, tl.where(is_end, (proposed == 0).to(tl.int32), drafted))
        tl.store(told + k, drafted, mask=(k == place) | is_end)
    return proposed, drafted
