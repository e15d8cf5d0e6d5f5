"""`quicksilver feedback`: capture is turned on, and captured suggestions are exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.objects import open_local
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.service import open_admin
from quicksilver.cli.feedback import _paying_key
from quicksilver.errors import InvalidRequest
from quicksilver.tuning.feedback import CAPTURE, captured_kinds
from tests.accounts.test_training_charges import new_key
from tests.support.command import quicksilver
from tests.support.feedback import add_feedback


def test_capture_export_and_forget(tmp_path: Path) -> None:
    assert "edit, fim" in quicksilver("feedback", "capture", "edit", "fim", home=tmp_path).stdout
    store = open_local(tmp_path / "objects.db")
    assert captured_kinds(store, "") == {"edit", "fim"}
    row = {"prompt": "a", "suffix": "", "completion": "b"}
    store.put("", [StoredObject(CAPTURE, "cmpl-1", json.dumps(row).encode())])
    store.close()
    (tmp_path / "feedback.jsonl").write_text('{"time": 1, "request_id": "cmpl-1", "user_action": "reject"}\n')
    target = tmp_path / "kto.jsonl"
    assert "1 lines, 0 accepted" in quicksilver("feedback", "export", "--kto", str(target), home=tmp_path).stdout
    assert json.loads(target.read_text()) == {**row, "label": False, "weight": 1.0, "source": "reject"}
    assert "1 captured" in quicksilver("feedback", "forget", home=tmp_path).stdout
    assert "nothing" in quicksilver("feedback", "capture", "--off", home=tmp_path).stdout


def test_a_kind_that_cannot_be_captured_is_refused(tmp_path: Path) -> None:
    done = quicksilver("feedback", "capture", "chat", home=tmp_path)
    assert (done.returncode, "edit or fim" in done.stderr) == (2, True)
    assert quicksilver("feedback", "capture", home=tmp_path).returncode == 2


def test_a_proposal_is_made_scheduled_and_accepted(tmp_path: Path) -> None:
    assert "0 reported" in quicksilver("feedback", "propose", home=tmp_path).stderr
    assert "every 7 days" in quicksilver("feedback", "propose", "--every-days", "7", home=tmp_path).stdout
    assert "no schedule" in quicksilver("feedback", "propose", "--off", home=tmp_path).stdout
    store = open_local(tmp_path / "objects.db")
    add_feedback(store, tmp_path, 60)
    made = quicksilver("feedback", "propose", home=tmp_path).stdout
    (stored,) = store.find("", "fine_tuning_job") or []
    assert stored.id in made
    assert "validating_files" in quicksilver("feedback", "accept", stored.id, home=tmp_path).stderr
    store.close()


def test_the_key_that_pays_for_a_proposal_is_one_of_the_project(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/books.db"
    admin = open_admin(url, AccountsConfig())
    (_, mine), (_, other) = new_key(admin), new_key(admin)
    project = admin.organizations.get_account(OPERATOR, mine).path.split("/")[1]
    admin.store.close()
    assert _paying_key(project, mine, url, None) == mine
    with pytest.raises(InvalidRequest, match="--key"):
        _paying_key(project, "", url, None)
    with pytest.raises(InvalidRequest, match="another project"):
        _paying_key(project, other, url, None)
