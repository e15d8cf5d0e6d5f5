from __future__ import annotations

import torch

from quicksilver.training.corrupt import distance_to_known, place_canvases, reveal, sample_anchors, weigh
from quicksilver.training.schedule import cosine_decay, index_weight, linear_decay


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_documents() -> tuple[torch.Tensor, torch.Tensor]:
    """12 slots: a prompt of 3, an answer of 4, a prompt of 2, an answer of 3."""
    is_target = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1]]).bool()
    doc_id = torch.tensor([[1] * 7 + [2] * 5])
    return is_target, doc_id


def test_anchors_are_two_before_a_target_and_ascend() -> None:
    is_target, _ = two_documents()
    anchor, is_real = sample_anchors(is_target, 12, generator())
    places = anchor[is_real].tolist()
    assert sorted(places) == places
    assert places == [1, 2, 3, 4, 7, 8, 9]


def test_a_canvas_row_counts_only_inside_its_anchors_document() -> None:
    is_target, doc_id = two_documents()
    canvases = place_canvases(is_target, doc_id, canvas_len=4, num_canvases=7, generator=generator())
    counts = {int(a): w.tolist() for a, w in zip(canvases.anchor[0], canvases.weight[0] > 0, strict=True)}
    assert counts[2] == [True, True, True, False]
    assert counts[4] == [True, False, False, False]
    assert counts[8] == [True, True, False, False]
    assert canvases.slot[0, 0].tolist() == [2, 3, 4, 5]


def test_distance_counts_undecided_rows_since_the_last_known() -> None:
    shown = torch.tensor([[False, False, True, False, False]])
    assert distance_to_known(shown).tolist() == [[0, 1, 0, 0, 1]]


def test_rows_before_a_shown_token_teach_nothing() -> None:
    is_target, doc_id = two_documents()
    canvases = place_canvases(is_target, doc_id, 4, 7, generator())
    shown = torch.zeros_like(canvases.is_revealed)
    shown[0, 1, 1] = True
    weighed = weigh(canvases, shown, decay=8.0)
    assert weighed.weight[0, 1, 0] == 0
    assert weighed.is_revealed[0, 1].tolist() == [False, True, False, False]


def test_reveal_touches_the_asked_share_of_canvases() -> None:
    shown = reveal((50, 40, 16), 0.25, generator(4)).any(-1).float().mean()
    assert 0.18 < float(shown) < 0.27
    assert not reveal((50, 40, 16), 0.0, generator(4)).any()


def test_weights_fall_with_distance_and_never_to_nothing() -> None:
    weight = index_weight(torch.arange(16), decay=8.0)
    assert torch.all(weight[1:] < weight[:-1])
    assert abs(float(weight[0]) - 1.05) < 1e-6
    assert float(weight[-1]) > 0.05


def test_decays_run_from_one_to_nothing() -> None:
    for decay in (linear_decay, cosine_decay):
        assert decay(0.0) == 1.0
        assert abs(decay(0.5) - 0.5) < 1e-9
        assert abs(decay(1.0)) < 1e-9
