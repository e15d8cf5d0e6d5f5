"""Names of organisations, projects and keys -> ids, so that commands accept both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import AccountRecord
from quicksilver.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from quicksilver.accounts.service import AdminService

_COMMANDS = {"org": "orgs", "project": "projects", "key": "keys"}
_TITLES = {"org": "organisation", "project": "project", "key": "key"}


def find_id(admin: AdminService, kind: str, text: str) -> str:
    """The id of the account of this kind (org, project or key) whose id or name is `text`.

    A project may also be given as `organisation/project`, or as the name of an organisation with one project.
    """
    accounts = admin.organizations.list_accounts(OPERATOR, kind)
    found = [one for one in accounts if text == one.id] or [one for one in accounts if text == one.name]
    if kind == "project" and not found:
        found = _of_organisation(admin, accounts, text)
    return _only(admin, found, kind, text).id


def project_titles(admin: AdminService) -> dict[str, str]:
    """`organisation/project` for the id of every project."""
    names = {org.id: org.name for org in admin.organizations.list_accounts(OPERATOR, "org")}
    projects = admin.organizations.list_accounts(OPERATOR, "project")
    return {one.id: f"{names[one.path.split('/')[0]]}/{one.name}" for one in projects}


def _of_organisation(admin: AdminService, projects: list[AccountRecord], text: str) -> list[AccountRecord]:
    titles = project_titles(admin)
    exact = [one for one in projects if titles[one.id] == text]
    return exact or [one for one in projects if text in (titles[one.id].rpartition("/")[0], one.path.split("/")[0])]


def _only(admin: AdminService, found: list[AccountRecord], kind: str, text: str) -> AccountRecord:
    if not found:
        raise NotFound(f"no {_TITLES[kind]} has the id or name {text!r}; see: quicksilver {_COMMANDS[kind]} list")
    if len(found) > 1:
        titles = project_titles(admin) if kind == "project" else {}
        found = sorted(found, key=lambda one: (titles.get(one.id, ""), one.id))
        ids = ", ".join(f"{one.id} ({titles[one.id]})" if titles else one.id for one in found)
        choice = "the id or organisation/project" if titles else "the id"
        raise InvalidRequest(f"{len(found)} {_TITLES[kind]}s match {text!r}; give {choice}: {ids}")
    return found[0]
