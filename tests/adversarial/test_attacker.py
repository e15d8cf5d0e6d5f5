"""A minute of mixed attacks on a live server with nano: nothing undeclared, no hang, and a sound ledger.

`python -m tests.adversarial.attacker --minutes 30` is the long run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversarial.attacker import Plan, attack_server
from tests.support.weights import nano


@pytest.mark.contract
@pytest.mark.timeout(900)
def test_mixed_attacks_do_not_affect_a_neighbour(tmp_path: Path) -> None:
    nano()
    report = attack_server(tmp_path, Plan(seed=1, seconds=60, quiet_chats=20))
    assert report["undeclared_5xx"] == 0, report["undeclared_examples"]
    assert report["hangs"] == []
    assert report["ledger_faults"] == []
    assert report["exchanges"] > 100
    assert report["neighbour_p99_over_quiet"] > 0
    assert not report["neighbour_failures"], "a well-behaved tenant is served"
