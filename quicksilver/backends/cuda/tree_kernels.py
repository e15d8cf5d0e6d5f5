"""Device functions that build a draft tree from candidate tokens, and find its accepted path.

A canvas gives an independent distribution for every position, so the probability of a path is the product of its
tokens' probabilities. A path is never likelier than its prefix. Taking the likeliest paths one after the other
therefore gives a tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Candidates per position: the drafted token, the canvas's best token if prompt lookup replaced it, and its next six.
NUM_CANDIDATES = 8
_CANDIDATES = tl.constexpr(NUM_CANDIDATES)
# Probability assigned to a token from prompt lookup. A tree then contains the whole match before most other paths.
_LOOKUP_PROBABILITY = tl.constexpr(0.99)
# A repeated token is down-weighted 10x: positions are drafted independently and often propose the same token.
_REPEAT_FACTOR = tl.constexpr(0.1)


@triton.jit
def store_candidates(
    canvas_draft, drafted, from_lookup, confidence, runners_up, num_rows, candidates, k, K: tl.constexpr
):
    """Store the candidates of every position and their probabilities into `candidates` (2, K, NUM_CANDIDATES);
    probability 0 is none. `canvas_draft` and `drafted` are the draft before and after prompt lookup, `confidence` are
    fp32 bits."""
    canvas_probability = confidence.to(tl.float32, bitcast=True)
    c = tl.arange(0, _CANDIDATES)[None, :]
    at = runners_up + tl.maximum(2 * (c - 2), 0) * num_rows + k[:, None]
    is_next = (c >= 2) & (k < K - 1)[:, None]
    token = tl.load(at, mask=is_next, other=-1)
    probability = tl.load(at + num_rows, mask=is_next, other=0).to(tl.float32, bitcast=True)
    token = tl.where(c == 0, drafted[:, None], tl.where(c == 1, canvas_draft[:, None], token))
    probability = tl.where(c < 2, canvas_probability[:, None], probability)
    probability = tl.where((c == 0) & from_lookup[:, None], tl.maximum(probability, _LOOKUP_PROBABILITY), probability)
    is_valid = (token >= 0) & ((c == 0) | (token != drafted[:, None])) & (k < K - 1)[:, None]
    out = candidates + k[:, None] * _CANDIDATES + c
    tl.store(out, token, mask=(k < K)[:, None])
    probability = tl.where(is_valid, probability, 0.0)
    tl.store(out + K * _CANDIDATES, probability.to(tl.int32, bitcast=True), mask=(k < K)[:, None])


@triton.jit
def build_tree(candidates, root, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """-> per row: token, parent row, depth and ancestor bitmask. Row 0 is `root`; every further row is the likeliest
    candidate that extends a row of the tree. Depth -1 if no candidate is left."""
    i, c, k = tl.arange(0, BLOCK), tl.arange(0, _CANDIDATES), tl.arange(0, BLOCK_K)
    at = candidates + k[:, None] * _CANDIDATES + c[None, :]
    tokens = tl.load(at, mask=(k < K)[:, None], other=-1)
    probabilities = tl.load(at + K * _CANDIDATES, mask=(k < K - 1)[:, None], other=0).to(tl.float32, bitcast=True)
    token, parent = tl.where(i == 0, root, 0), tl.zeros((BLOCK,), tl.int32)
    depth, ancestors = tl.where(i == 0, 0, -1), tl.where(i == 0, 1, 0)
    score = tl.where((i == 0)[:, None], _child_probabilities(tokens, probabilities, k, 0, root)[None, :], 0.0)
    for n in range(1, ROWS):
        best, best_candidate = tl.max(score, 1, return_indices=True)
        top, source = tl.max(best, 0, return_indices=True)
        is_source = i == source
        # Both values in one reduction.
        packed = tl.sum(tl.where(is_source, best_candidate * 64 + depth, 0), 0)
        candidate, position = packed // 64, packed % 64
        new_token = tl.sum(tl.sum(tl.where((k == position)[:, None] & (c == candidate)[None, :], tokens, 0), 1), 0)
        score = tl.where(is_source[:, None] & (c == candidate)[None, :], 0.0, score)
        is_new = i == tl.where(top > 0.0, n, -1)
        token, parent = tl.where(is_new, new_token, token), tl.where(is_new, source, parent)
        parent_ancestors = tl.sum(tl.where(is_source, ancestors, 0), 0)
        depth, ancestors = (
            tl.where(is_new, position + 1, depth),
            tl.where(is_new, parent_ancestors | bits(i), ancestors),
        )
        score = tl.where(
            is_new[:, None],
            top * _child_probabilities(tokens, probabilities, k, position + 1, new_token)[None, :],
            score,
        )
    return token, parent, depth, ancestors


@triton.jit
def _child_probabilities(tokens, probabilities, k, position, parent):
    """(NUM_CANDIDATES,): probability of each candidate of a position after the token `parent`."""
    is_position = (k == position)[:, None]
    probability = tl.where(tokens == parent, _REPEAT_FACTOR * probabilities, probabilities)
    return tl.sum(tl.where(is_position, probability, 0.0), 0)


@triton.jit
def bits(i):
    """1 << i as int32; bit 31 is the sign."""
    return (tl.full(i.shape, 1, tl.int64) << i).to(tl.int32)


@triton.jit
def find_accepted(verified, token, depth, ancestors, i):
    """-> the number of accepted tokens, and the row of the last one. `verified`: the causal model's token after the
    parent of each row. Siblings have different tokens, so at most one of them is accepted."""
    is_rejected = (i > 0) & (depth >= 0) & (verified != token)
    rejected = tl.sum(tl.where(is_rejected, bits(i), 0), 0)
    accepted_depth = tl.where((depth >= 0) & ((ancestors & rejected) == 0), depth, -1)
    return tl.max(accepted_depth, 0), tl.argmax(accepted_depth, 0)
