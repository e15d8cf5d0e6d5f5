from __future__ import annotations

import pytest

from quicksilver.core import Request, ScoreRequest
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.tenant_load import ACTIVE_S, TenantLoad
from quicksilver.errors import EngineUnavailable
from tests.support.tiny import decode_params, finish_all, tiny_engine

PARAMS = decode_params("ar", max_new_tokens=2)


def prompt(number: int, tenant: str, num_tokens: int = 100) -> Request:
    return Request(f"{tenant}{number}", (number, *(i % 97 for i in range(1, num_tokens))), PARAMS, tenant)


def test_a_tenant_alone_is_never_refused() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    for number in range(5):
        engine.add(prompt(number, "a"))
    assert len(finish_all(engine)) == 5


def test_a_tenant_with_much_open_work_is_refused_beside_another() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    engine.add(prompt(0, "b", 5))
    for number in range(2):
        engine.add(prompt(number, "a"))
    with pytest.raises(EngineUnavailable) as refused:
        engine.add(prompt(2, "a"))
    assert refused.value.retry_after_s > 1
    engine.add(prompt(1, "b", 5))
    assert len(finish_all(engine)) == 4
    engine.add(prompt(3, "a"))


def test_rows_of_scoring_count() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    engine.add(prompt(0, "b", 5))
    engine.add_score(ScoreRequest("s", (1, 2, 3), tuple((i, *range(1, 20)) for i in range(1, 12)), "a"))
    with pytest.raises(EngineUnavailable):
        engine.add(prompt(1, "a", 5))


def test_another_tenant_counts_for_a_while() -> None:
    now = [0.0]
    load = TenantLoad(10, lambda: now[0])
    engine = tiny_engine()
    sequences = [engine.prepare(prompt(0, "a")).sequence]
    load.check("b", ())
    now[0] = ACTIVE_S - 1
    with pytest.raises(EngineUnavailable):
        load.check("a", sequences)
    now[0] = ACTIVE_S + 1
    load.check("a", sequences)
