"""`quicksilver orgs|keys|usage|prices|db` against SQLite and PostgreSQL, and at a terminal width of 80 columns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import ALL_SCOPES, OPERATOR, Identity
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import Order, Price
from quicksilver.accounts.service import open_admin
from quicksilver.cli import accounts
from quicksilver.cli.app import app
from quicksilver.core import Usage
from quicksilver.errors import QuicksilverError

Run = Callable[..., str]


@pytest.fixture
def run(url: str, config: AccountsConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    return _runner(url, config, monkeypatch)


def _runner(url: str, config: AccountsConfig, monkeypatch: pytest.MonkeyPatch, width: int = 300) -> Run:
    monkeypatch.setenv("QUICKSILVER_DATABASE_URL", url)
    monkeypatch.setenv("QUICKSILVER_PEPPER", str(config.pepper_path))

    def run(*args: str) -> str:
        out = Console(width=width)
        monkeypatch.setattr(accounts, "out", out)
        with out.capture() as captured:
            result = CliRunner().invoke(app, args, catch_exceptions=False)
        return captured.get() + result.stdout

    return run


def org_ids(url: str, config: AccountsConfig) -> tuple[str, str]:
    admin = open_admin(url, config)
    (project,) = admin.organizations.list_accounts(OPERATOR, "project")
    admin.store.close()
    org_id, project_id = project.path.split("/")
    return org_id, project_id


def test_database_commands(empty_url: str, config: AccountsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _runner(empty_url, config, monkeypatch)
    assert run("db", "upgrade").split() == ["m0001_books", "m0002_accounts", "m0003_objects", "m0004_may_leave"]
    assert run("db", "upgrade").strip() == "up to date"
    assert run("db", "check").strip() == "the ledger is consistent"


def test_backup(sqlite_url: str, config: AccountsConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _runner(sqlite_url, config, monkeypatch)("db", "upgrade")
    _runner(sqlite_url, config, monkeypatch)("db", "backup", str(tmp_path / "copy.db"))
    copy = _runner(f"sqlite:///{tmp_path}/copy.db", config, monkeypatch)
    assert copy("db", "check").strip() == "the ledger is consistent"


def test_organisations_and_keys(run: Run, url: str, config: AccountsConfig) -> None:
    assert "10000000" in run("orgs", "create", "acme")
    org_id, project_id = org_ids(url, config)
    assert "10000007" in run("orgs", "credit", org_id, "7", "--reference", "gift")
    assert "acme" in run("orgs", "list")
    first = run("keys", "create", "ci", "--project", project_id, "--budget", "0.5", "--days", "3").strip()
    assert first.startswith("qs-")
    listed = run("keys", "list")
    key_id = next(word for word in listed.split() if word.startswith("key_"))
    second = run("keys", "rotate", key_id).strip()
    listed = run("keys", "list")
    assert second[:9] in listed
    assert first[:9] not in listed
    assert "inference usage" in listed
    assert "0.5" in listed
    run("keys", "revoke", key_id)
    assert "revoked" in run("keys", "list")


def test_names_are_accepted_for_ids(run: Run, url: str, config: AccountsConfig) -> None:
    run("orgs", "create", "acme")
    run("projects", "create", "search", "--org", "acme")
    listed = run("projects", "list")
    assert "acme/default" in listed
    assert "acme/search" in listed
    for project in ("search", "acme/default"):
        assert run("keys", "create", f"of {project}", "--project", project).startswith("qs-")
    assert "17" in run("orgs", "credit", "acme", "17", "--reference", "gift")
    assert run("keys", "rotate", "of search").startswith("qs-")
    run("keys", "revoke", "of search")
    assert "revoked" in run("keys", "list")


def test_the_name_of_an_organisation_selects_its_only_project(run: Run) -> None:
    run("orgs", "create", "acme")
    run("orgs", "create", "other")
    assert run("keys", "create", "ci", "--project", "acme", "--requests", "5").startswith("qs-")
    run("projects", "create", "second", "--org", "acme")
    with pytest.raises(
        QuicksilverError,
        match=r"2 projects match 'acme'; give the id or organisation/project: proj_\w+ \(acme/default\), proj_",
    ):
        run("keys", "create", "ci", "--project", "acme")
    with pytest.raises(QuicksilverError, match="2 projects match 'default'"):
        run("keys", "create", "ci", "--project", "default")
    with pytest.raises(
        QuicksilverError, match="no project has the id or name 'unknown'; see: quicksilver projects list"
    ):
        run("keys", "create", "ci", "--project", "unknown")


def test_a_new_key_may_have_limits(run: Run, url: str, config: AccountsConfig) -> None:
    run("orgs", "create", "acme")
    run("keys", "create", "ci", "--project", "acme", "--requests", "5", "--output-tokens", "1000")
    admin = open_admin(url, config)
    (key,) = admin.keys.list_keys(OPERATOR)
    admin.store.close()
    assert (key.account.limits.requests, key.account.limits.output_tokens) == (5, 1000)
    listed = run("keys", "list")
    assert "acme/default" in listed
    assert "requests=5/min output_tokens=1000/min" in listed


def test_the_id_of_a_new_or_revoked_key_is_printed_on_stderr(run: Run) -> None:
    run("orgs", "create", "acme")
    created = CliRunner().invoke(app, ("keys", "create", "ci", "--project", "acme"), catch_exceptions=False)
    key_id = created.stderr.strip().removeprefix("created ")
    assert key_id.startswith("key_")
    assert created.stdout.startswith("qs-")
    revoked = CliRunner().invoke(app, ("keys", "revoke", key_id), catch_exceptions=False)
    assert (revoked.stdout, revoked.stderr) == ("", f"revoked {key_id}\n")


def test_usage(run: Run, url: str, config: AccountsConfig) -> None:
    run("orgs", "create", "acme")
    org_id, project_id = org_ids(url, config)
    run("keys", "create", "ci", "--project", project_id)
    assert run("usage").strip() in {"", "no entries"}
    admin = open_admin(url, config)
    (key,) = admin.keys.list_keys(OPERATOR)
    identity = Identity(key.account.id, f"{org_id}/{project_id}/{key.account.id}", ALL_SCOPES)
    ledger = Ledger("p", Price(10, 1, 100), config.reply_kept_s, time.time)
    with admin.store.write() as connection:
        reserve = Reserve(identity, Order("r", "nano", 5, 5))
        ledger.apply(connection, [reserve, Close("r", How.SETTLE, Usage(5, 0, 5))])
    admin.store.close()
    shown = run("usage", "--by", "key", "--by", "model")
    assert all(text in shown for text in (key.account.id, "nano", "0.00055"))
    assert "project_id" not in shown


def test_a_project_consents_to_hybrid_routing(run: Run, url: str, config: AccountsConfig) -> None:
    run("orgs", "create", "acme")
    _, project_id = org_ids(url, config)
    assert "yes" in run("projects", "consent", "acme", "--may-leave").splitlines()[-2]
    admin = open_admin(url, config)
    assert admin.organizations.may_leave(project_id)
    run("projects", "consent", project_id, "--may-not-leave")
    assert not admin.organizations.may_leave(project_id)
    admin.store.close()


def test_prices(run: Run) -> None:
    assert "*" in run("prices", "list")
    shown = run("prices", "set", "nano", "1000000", "0", "2000000")
    assert [line.split()[1:-1:2] for line in shown.splitlines() if "nano" in line] == [["nano", "1", "0", "2"]]


def test_a_wrong_price_is_refused(run: Run) -> None:
    with pytest.raises(QuicksilverError):
        run("prices", "set", "nano", "1", "2", "1")


def test_lists_are_readable_at_80_columns(
    sqlite_url: str, config: AccountsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _runner(sqlite_url, config, monkeypatch, width=80)
    run("orgs", "create", "acme")
    _, project_id = org_ids(sqlite_url, config)
    run("keys", "create", "ci", "--project", project_id, "--scope", "admin")
    admin = open_admin(sqlite_url, config)
    (key,) = admin.keys.list_keys(OPERATOR)
    admin.store.close()
    for command in (("orgs", "list"), ("projects", "list"), ("keys", "list"), ("prices", "list"), ("usage",)):
        assert all(len(line) <= 80 for line in run(*command).splitlines())
    assert f"id       {key.account.id}\n" in run("keys", "list")


def test_a_budget_is_listed_with_its_period(run: Run, url: str, config: AccountsConfig) -> None:
    run("orgs", "create", "acme")
    run("keys", "create", "ci", "--project", "acme", "--budget", "300")
    assert "300" in run("keys", "list")
    admin = open_admin(url, config)
    (key,) = admin.keys.list_keys(OPERATOR)
    admin.organizations.set_budget(OPERATOR, key.account.id, 5_000_000_000, "day")
    admin.store.close()
    assert "5000 per day" in run("keys", "list")
