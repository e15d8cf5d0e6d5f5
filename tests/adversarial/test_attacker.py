"""A minute of mixed attacks on a live server with nano: nothing undeclared, nothing left behind, and a sound ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversarial.attacker import attack_server
from tests.support.weights import nano


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_a_minute_of_mixed_attacks_breaks_no_promise(tmp_path: Path) -> None:
    nano()
    report = attack_server(tmp_path, seed=1, seconds=60)
    assert report["undeclared_5xx"] == 0, report["undeclared_examples"]
    assert report["hangs"] == []
    assert report["ledger_faults"] == []
    assert report["exchanges"] > 100
    assert not report["neighbour_failures"], "a well-behaved tenant is served"
