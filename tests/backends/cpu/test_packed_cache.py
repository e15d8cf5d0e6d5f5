"""The cache of packed models: the same model as packing again, and a new one after any change."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.transformer import Transformer
from tests.model.build import random_model, small_config
from tests.support.canvas_adapters import new_canvas

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.packed_cache import load_or_pack
from tests.backends.cpu.build import same
from tests.support.quantised import quantise_model

CONFIG = small_config("qwen2")


def make_model(seed: int = 0) -> Transformer:
    model = random_model(CONFIG, seed)
    attach_canvas(model, new_canvas(model.config, rank=3, max_canvas_len=4, seed=1))
    return quantise_model(model)


def sources(folder: Path) -> list[Path]:
    paths = [folder / "weights", folder / "skill"]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def refuse() -> Transformer:
    raise AssertionError("made again without need")


def test_second_start_reads_the_same_model(tmp_path: Path) -> None:
    files = sources(tmp_path)
    made = load_or_pack(tmp_path / "kept", "some", files, CONFIG, make_model)
    assert same(load_or_pack(tmp_path / "kept", "some", files, CONFIG, refuse), made)


def test_a_changed_source_makes_a_new_file_and_drops_the_old(tmp_path: Path) -> None:
    files, kept = sources(tmp_path), tmp_path / "kept"
    load_or_pack(kept, "some", files, CONFIG, make_model)
    load_or_pack(kept, "some-other", files, CONFIG, make_model)
    files[1].write_bytes(b"other")
    found = load_or_pack(kept, "some", files, CONFIG, lambda: make_model(seed=5))
    assert not same(found, make_model())
    assert len(list(kept.glob("*/*"))) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b[:8] + b"{" + b[9:]])
def test_a_damaged_file_is_packed_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    files, kept = sources(tmp_path), tmp_path / "kept"
    made = load_or_pack(kept, "some", files, CONFIG, make_model)
    (path,) = kept.glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    assert same(load_or_pack(kept, "some", files, CONFIG, make_model), made)
    assert same(load_or_pack(kept, "some", files, CONFIG, refuse), made)


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    assert same(load_or_pack(tmp_path / "kept", "some", sources(tmp_path), CONFIG, make_model), make_model())
