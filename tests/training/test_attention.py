from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import create_mask

from quicksilver.training.attention import canvas_rule, dense_mask, document_rule
from quicksilver.training.corrupt import Canvases, place_canvases

CPU = torch.device("cpu")
DOC_ID = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3], [1] * 12])


def canvases() -> Canvases:
    is_target = torch.ones(2, 12, dtype=torch.bool)
    return place_canvases(is_target, DOC_ID, canvas_len=3, num_canvases=4, generator=torch.Generator().manual_seed(2))


def brute_force(placed: Canvases) -> torch.Tensor:
    """The rule written out: the own canvas, and the anchor's document up to the anchor."""
    visible = torch.zeros(2, 12, 24, dtype=torch.bool)
    for b in range(2):
        for row in range(12):
            canvas = row // 3
            anchor = int(placed.anchor[b, canvas])
            visible[b, row, canvas * 3 : canvas * 3 + 3] = True
            for token in range(anchor + 1):
                visible[b, row, 12 + token] = DOC_ID[b, token] == DOC_ID[b, anchor]
    return visible


def test_canvas_mask_equals_brute_force() -> None:
    placed = canvases()
    assert torch.equal(dense_mask(canvas_rule(placed, DOC_ID), 2, 12, 24, CPU)[:, 0], brute_force(placed))


def test_document_mask_is_causal_within_documents() -> None:
    mask = dense_mask(document_rule(DOC_ID), 2, 12, 12, CPU)[:, 0]
    assert mask[0, 5].nonzero().flatten().tolist() == [4, 5]
    assert mask[1, 5].nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_flex_attention_reads_the_same_rules() -> None:
    placed = canvases()
    for rule, num_keys in ((canvas_rule(placed, DOC_ID), 24), (document_rule(DOC_ID), 12)):
        flex = create_mask(rule, 2, 1, 12, num_keys, device="cpu")
        assert torch.equal(flex, dense_mask(rule, 2, 12, num_keys, CPU))
