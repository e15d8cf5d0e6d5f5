"""Which device supports which number format."""

from __future__ import annotations

from typing import get_args

import pytest

from quicksilver.cli import options
from quicksilver.engine import load
from quicksilver.engine.load import pick_weights
from quicksilver.errors import InvalidRequest
from quicksilver.model.formats.weight_formats import DEVICES, SETTINGS, check_format, formats_of


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_format_of_another_device_is_refused_with_the_alternatives(name: str, device: str) -> None:
    if device in DEVICES[name]:
        check_format(name, device)
        return
    with pytest.raises(InvalidRequest, match=name) as refused:
        check_format(name, device)
    assert refused.value.param == "weights"
    assert all(other in refused.value.message for other in formats_of(device))


def test_an_unknown_format_is_refused_with_all_settings() -> None:
    with pytest.raises(InvalidRequest, match="int5") as refused:
        check_format("int5", "cpu")
    assert all(name in refused.value.message for name in SETTINGS)


def test_the_command_line_offers_the_same_settings() -> None:
    choices, _ = get_args(options.Weights)
    assert get_args(choices) == SETTINGS


def test_auto_is_a_format_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_weights("auto", "cuda") == "bfloat16"
    monkeypatch.setattr(load, "cpu_unsupported", lambda: None)
    assert pick_weights("auto", "cpu") == "int8"
    monkeypatch.setattr(load, "cpu_unsupported", lambda: "the CPU has no AVX2")
    assert pick_weights("auto", "cpu") == "float32"


def test_a_cpu_without_int8_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "cpu_unsupported", lambda: "the CPU has no AVX2")
    with pytest.raises(InvalidRequest, match=r"AVX2.*use auto, float32, bfloat16"):
        pick_weights("int8", "cpu")
