"""Names and ids of accounts on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.cli.account_names import find_id, project_titles
from quicksilver.errors import InvalidRequest, NotFound


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminService]:
    """Organisations with their projects: acme/default, acme/web, acme/app, zoo/default."""
    service = open_admin(f"sqlite:///{tmp_path}/books.db", AccountsConfig(pepper_path=tmp_path / "pepper"))
    for name, projects in (("acme", ("web", "app")), ("zoo", ())):
        org = service.organizations.create_org(OPERATOR, name, 1)
        for project in projects:
            service.organizations.create_project(OPERATOR, org.id, project)
    yield service
    service.store.close()


def title_of(admin: AdminService, text: str) -> str:
    return project_titles(admin)[find_id(admin, "project", text)]


def test_a_project_is_found_by_every_unambiguous_name(admin: AdminService) -> None:
    assert sorted(project_titles(admin).values()) == ["acme/app", "acme/default", "acme/web", "zoo/default"]
    assert title_of(admin, "app") == "acme/app"
    assert title_of(admin, "acme/web") == "acme/web"
    assert title_of(admin, "zoo") == "zoo/default"
    by_title = {title: one for one, title in project_titles(admin).items()}
    assert find_id(admin, "project", by_title["acme/web"]) == by_title["acme/web"]
    assert title_of(admin, find_id(admin, "org", "zoo")) == "zoo/default"


def test_a_name_of_several_projects_is_refused_with_their_ids(admin: AdminService) -> None:
    for text, count in (("default", 2), ("acme", 3)):
        with pytest.raises(InvalidRequest, match=f"{count} projects match") as refused:
            find_id(admin, "project", text)
        assert "organisation/project" in refused.value.message
        assert "acme/default" in refused.value.message


@pytest.mark.parametrize(("kind", "command"), [("org", "orgs"), ("project", "projects"), ("key", "keys")])
def test_an_unknown_name_is_refused_with_the_command_that_lists_names(
    admin: AdminService, kind: str, command: str
) -> None:
    with pytest.raises(NotFound, match=f"quicksilver {command} list"):
        find_id(admin, kind, "none")
