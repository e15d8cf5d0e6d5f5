"""The cache of adapters: loaded once, bounded, least recently used out first, never while in use."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from quicksilver.adapters import AdapterRef
from quicksilver.core import Request, ScoreRequest
from quicksilver.engine.adapter_cache import AdapterCache
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Scored
from quicksilver.errors import CheckpointRefused, EngineUnavailable, InvalidRequest
from quicksilver.model.row_adapters import RowAdapter
from tests.support.row_adapters import random_adapter, saved
from tests.support.tiny import decode_params, finish_all, generate, tiny_engine

PARAMS = decode_params("verify", canvas_len=4, max_new_tokens=8)
PROMPT = (1, 2, 3)


def ref_of(name: str) -> AdapterRef:
    return AdapterRef(name, f"/adapters/{name}")


class Loader:
    """Adapters of 10 bytes; the names of those that were loaded."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def __call__(self, ref: AdapterRef) -> RowAdapter:
        self.loaded.append(ref.id)
        return RowAdapter([], 4, 10)


def test_the_least_recently_used_adapter_is_evicted() -> None:
    loader = Loader()
    cache = AdapterCache(loader, 30)
    for name in "abcad":
        cache.lease(ref_of(name))
    assert [info.id for info in cache.list()] == ["c", "a", "d"]
    cache.lease(ref_of("b"))
    assert loader.loaded == ["a", "b", "c", "d", "b"]
    assert cache.num_bytes == 30


class Store:
    """A device with room for three adapters; what was placed and dropped, in order."""

    num_bytes = 30

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.numbers: dict[RowAdapter, int] = {}

    def place(self, adapter: RowAdapter) -> None:
        self.numbers[adapter] = len(self.numbers)
        self.calls.append(("place", self.numbers[adapter]))

    def drop(self, adapter: RowAdapter) -> None:
        self.calls.append(("drop", self.numbers[adapter]))


def test_a_device_drops_an_adapter_before_it_places_another() -> None:
    store = Store()
    cache = AdapterCache(Loader(), 0, store)
    lease = cache.lease(ref_of("a"))
    for name in "bcbd":
        cache.lease(ref_of(name))
    assert store.calls == [("place", 0), ("place", 1), ("place", 2), ("drop", 2), ("place", 3)]
    del lease
    assert cache.unload("a")
    assert store.calls[-1] == ("drop", 0)


def test_an_adapter_in_use_stays_and_a_full_cache_refuses_for_now() -> None:
    cache = AdapterCache(Loader(), 20)
    leases = [cache.lease(ref_of(name)) for name in "ab"]
    assert [info.is_in_use for info in cache.list()] == [True, True]
    with pytest.raises(EngineUnavailable, match="retry"):
        cache.lease(ref_of("c"))
    assert not cache.unload("a")
    del leases[1]
    assert cache.lease(ref_of("c")) is not None
    assert [info.id for info in cache.list()] == ["a", "c"]


def test_an_adapter_above_the_limit_is_refused_with_the_setting_to_change() -> None:
    cache = AdapterCache(Loader(), 9)
    with pytest.raises(CheckpointRefused, match="adapter_bytes"):
        cache.lease(ref_of("a"))
    assert cache.list() == ()


def test_unload_frees_an_idle_adapter() -> None:
    cache = AdapterCache(Loader(), 30)
    assert cache.info(ref_of("a")).rank == 4
    assert cache.unload("a")
    assert not cache.unload("a")
    assert ref_of("a") not in cache


def test_threads_that_ask_for_one_adapter_load_it_once() -> None:
    loader, started = Loader(), threading.Barrier(8)
    cache, leases = AdapterCache(loader, 30), list[object]()

    def ask() -> None:
        started.wait(10)
        leases.append(cache.lease(ref_of("a")))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert loader.loaded == ["a"]
    assert len(leases) == 8


def test_a_refused_adapter_is_read_again_only_after_its_file_changed(tmp_path: Path) -> None:
    path, loaded = tmp_path / "adapter", list[str]()

    def refuse(ref: AdapterRef) -> RowAdapter:
        loaded.append(ref.id)
        raise CheckpointRefused("it does not fit")

    cache, ref = AdapterCache(refuse, 30), AdapterRef("a", str(path))
    for content in ("", "", "longer", "longer"):
        if content:
            path.write_text(content)
            os.utime(path, (1, 1))
        with pytest.raises(CheckpointRefused, match="does not fit"):
            cache.lease(ref)
    assert len(loaded) == 2, "once while the file is missing, once with its content"


def test_an_engine_holds_many_adapters_within_its_limit(tmp_path: Path) -> None:
    refs = [saved(tmp_path, random_adapter(seed), str(seed)) for seed in range(6)]
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96, adapter_bytes=30_000))
    first = [generate(engine, PROMPT, PARAMS, adapter=ref) for ref in refs]
    assert 1 < len(engine.adapters.list()) < len(refs)
    assert engine.adapters.num_bytes <= 30_000
    assert [generate(engine, PROMPT, PARAMS, adapter=ref) for ref in refs] == first, "loaded again on demand"
    assert not any(info.is_in_use for info in engine.adapters.list())


def test_scores_are_those_of_the_adapter(tmp_path: Path) -> None:
    ref = saved(tmp_path, random_adapter(1, embedding_ids=(9, 8)))
    engine = tiny_engine()
    found = []
    for adapter in (None, ref):
        engine.add_score(ScoreRequest("s", PROMPT, ((9, 4), (8,)), adapter=adapter))
        while engine.has_work:
            found += [event.scores.logprobs for event in engine.step() if isinstance(event, Scored)]
    assert len(found) == 2
    assert found[0] != found[1]


def test_files_that_changed_after_they_were_read_are_refused(tmp_path: Path) -> None:
    ref = saved(tmp_path, random_adapter(1))
    saved(tmp_path, random_adapter(2))
    with pytest.raises(CheckpointRefused, match="were changed"):
        tiny_engine().add(Request("x", PROMPT, PARAMS, adapter=ref))


@pytest.mark.parametrize("name", ["gone", "cut", "pickle"])
def test_damaged_files_are_refused_without_their_folder(tmp_path: Path, name: str) -> None:
    ref = saved(tmp_path, random_adapter(1))
    path = Path(ref.path)
    if name == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:200] if name == "cut" else b"\x80\x04pickled")
    with pytest.raises(CheckpointRefused) as refused:
        tiny_engine().add(Request("x", PROMPT, PARAMS, adapter=ref))
    assert str(tmp_path) not in refused.value.message


def test_an_adapter_of_another_base_file_is_refused(tmp_path: Path) -> None:
    from quicksilver.engine.build import build_engine
    from tests.support.tiny import tiny_model

    ref = saved(tmp_path, random_adapter(1), base_sha256="aa")
    for base, fits in (("", True), ("aa", True), ("bb", False)):
        engine = build_engine(tiny_model(), "tiny", EngineConfig(num_pages=64), base_sha256=base)
        if fits:
            generate(engine, PROMPT, PARAMS, adapter=ref)
            continue
        with pytest.raises(CheckpointRefused, match="another base file"):
            engine.add(Request("x", PROMPT, PARAMS, adapter=ref))


def test_an_engine_without_support_refuses_the_request() -> None:
    engine = tiny_engine()
    engine._adapters = None
    with pytest.raises(InvalidRequest, match="cannot apply adapters"):
        engine.add(Request("x", PROMPT, PARAMS, adapter=ref_of("a")))
    assert finish_all(engine) == {}
