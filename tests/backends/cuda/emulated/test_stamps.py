"""Time stamps are inserted at the right places of the kernel's source."""

from __future__ import annotations

import re

import pytest

from benchmarks.stamps import NUM_STAMPS, PARTS, stamped
from quicksilver.backends.cuda.compile import source

_STAMP = re.compile(r"^    .*stamp\(state, (.+)\);\n", re.MULTILINE)


def test_every_part_of_a_layer_is_stamped_once_and_in_order() -> None:
    marked = stamped(source("layer_fused.cu"), 0x7000)
    found = _STAMP.findall(marked)
    inputs = [2 + 2 * kind for kind in range(4)]  # after one line that all linears share
    assert found.count("2 + 2 * L::KIND") == 1
    assert sorted(inputs + [int(index) for index in found if index.isdecimal()]) == list(range(NUM_STAMPS))
    places = [marked.index(f"    stamp(state, {index});") for index in range(3, NUM_STAMPS, 2)]
    assert places == sorted(places), "the linears are in the order of the stamps"
    assert "28672ULL" in marked


def test_the_source_without_its_stamps_is_the_kernels_source() -> None:
    plain = _STAMP.sub("", stamped(source("layer_fused.cu"), 0x7000))
    begin = plain.index("\nDEVICE void stamp(")
    end = plain.index("}\n", begin) + 2
    assert plain[:begin] + plain[end:] == source("layer_fused.cu")


def test_a_changed_source_is_refused_with_the_missing_line() -> None:
    changed = source("layer_fused.cu").replace(PARTS[2][1], "")
    with pytest.raises(ValueError, match="mma_linear<Output>"):
        stamped(changed, 0)
