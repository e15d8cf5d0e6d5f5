"""Clock stamps find their places in the kernel's source."""

from __future__ import annotations

import re

import pytest

from benchmarks.stamps import NUM_STAMPS, PARTS, stamped
from quicksilver.model.kernels.cuda.compile import source


def test_every_part_of_a_layer_is_stamped_once_and_in_order() -> None:
    marked = stamped(source("between.cu"), 0x7000)
    found = [int(index) for index in re.findall(r"^    stamp\(me, (\d+)\);$", marked, re.MULTILINE)]
    assert sorted(found) == list(range(NUM_STAMPS))
    places = [marked.index(f"    stamp(me, {index});") for index in range(2, NUM_STAMPS)]
    assert places == sorted(places), "the linears come in the order of the stamps"
    assert "28672ULL" in marked


def test_without_its_stamps_the_source_is_the_kernels() -> None:
    marked = stamped(source("between.cu"), 0x7000)
    plain = re.sub(r"^    stamp\(me, \d+\);\n", "", marked, flags=re.MULTILINE)
    begin = plain.index("\nDEVICE void stamp(")
    end = plain.index("}\n", begin) + 2
    assert plain[:begin] + plain[end:] == source("between.cu")


def test_a_source_that_has_changed_is_refused_by_name() -> None:
    changed = source("between.cu").replace(PARTS[2][1], "")
    with pytest.raises(ValueError, match="multiply_linear<Output>"):
        stamped(changed, 0)
