"""Task names and groups."""

from __future__ import annotations

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.evals.catalogue import ALL, GROUPS, pick_tasks, refuse_likelihoods


def test_groups_name_existing_tasks() -> None:
    assert {name for names in GROUPS.values() for name in names} <= ALL.keys()


def test_a_task_that_is_named_twice_runs_once_in_the_requested_order() -> None:
    assert [task.name for task in pick_tasks(["gsm8k", "chat"])] == ["gsm8k", "sanity", "instructions"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="no task or group is named hellaswagg") as refused:
        pick_tasks(["hellaswagg"])
    assert "sanity" in refused.value.message


def test_likelihood_tasks_are_refused_for_servers() -> None:
    refuse_likelihoods(["generating"])
    with pytest.raises(InvalidRequest, match="wikitext2"):
        refuse_likelihoods(["wikitext2"])
