"""What launches ask for ahead of time lies inside the matrices that follow, each byte asked for once."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.kernels.later import FetchPlan, Later, LayerLater, can_fetch, plan_layer


def _plan(plan: FetchPlan) -> tuple[LayerLater, dict[str, torch.Tensor]]:
    sizes = {"gate_up": (6144, 512), "down": (512, 3072), "qkv": (1024, 512), "o": (512, 512)}
    w = {name: torch.empty(size, dtype=torch.bfloat16) for name, size in sizes.items()}
    return plan_layer(w["gate_up"], w["down"], (w["qkv"], w["o"]), plan), w


def _offsets(later: Later | None, w: torch.Tensor) -> list[tuple[int, int]]:
    assert later is not None
    return [(address - w.data_ptr(), address - w.data_ptr() + size) for address, size in (later.first, later.second)]


def test_launches_ask_for_gates_and_ups_one_after_the_other() -> None:
    later, w = _plan(FetchPlan(by_qkv=1, by_attention=2, by_output=20))
    half = w["gate_up"].numel()  # bytes of the gates: half of the numbers, two bytes each
    assert _offsets(later.by_qkv, w["gate_up"]) == [(0, 1 << 19), (half, half + (1 << 19))]
    assert _offsets(later.by_attention, w["gate_up"]) == [(1 << 19, 3 << 19), (half + (1 << 19), half + (3 << 19))]
    assert _offsets(later.by_output, w["gate_up"]) == [(3 << 19, half), (half + (3 << 19), 2 * half)]


def test_what_follows_is_asked_for_up_to_its_end() -> None:
    later, w = _plan(FetchPlan(by_gates=1, by_down=100))
    assert later.by_qkv is later.by_attention is later.by_output is None
    first, second = _offsets(later.by_gates, w["down"])
    assert first == (0, second[0])
    assert second[1] <= 1 << 20
    assert later.by_down == Later((w["qkv"].data_ptr(), 1 << 20), (w["o"].data_ptr(), 1 << 19))


@pytest.mark.parametrize("programs", [1, 7, 128])
def test_the_programs_of_a_launch_share_all_of_it(programs: int) -> None:
    share = Later((0, 3 << 20), (1 << 30, 1 << 20)).args(programs)[-1]
    assert share % 128 == 0
    assert 3 << 20 <= share * programs * 4 < (3 << 20) + 128 * programs * 4


def test_only_a_chip_that_knows_how_is_asked() -> None:
    assert can_fetch(torch.device("cpu")) is False
