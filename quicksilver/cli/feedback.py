"""`quicksilver feedback`: which suggestions are captured, and their export as lines for a KTO job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from quicksilver.cli import options
from quicksilver.cli.account_names import find_id
from quicksilver.cli.console import out
from quicksilver.errors import InvalidRequest
from quicksilver.hub.resolve import default_home
from quicksilver.tuning.feedback import KINDS, forget_captures, kto_lines, read_reports, set_capture, with_unchanged
from quicksilver.tuning.proposing import MIN_LINES, Schedule, accept, set_schedule
from quicksilver.tuning.proposing import propose as make_proposal

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

feedback = typer.Typer(help="Capture suggestions and export them with their feedback.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="Id or name of the project; empty: a server without accounts.")]


@feedback.command("capture")
def capture(
    kinds: Annotated[list[str] | None, typer.Argument(help="edit, fim or both; none with --off.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Capture nothing from now on.")] = False,
    project: Project = "",
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Keep prompts and answers of edits and infills for 30 days, so that feedback can be joined."""
    if bool(kinds) == off:
        raise InvalidRequest(f"name {' or '.join(KINDS)}, or --off")
    with _objects(project, database_url, pepper) as (objects, owner):
        set_capture(objects, owner, kinds or [])
    out.print(f"captured: {', '.join(sorted(set(kinds or []))) or 'nothing'}")


@feedback.command("export")
def export(
    target: Annotated[Path, typer.Argument(help="File to write, one JSON object per line.")],
    kto: Annotated[bool, typer.Option("--kto", help="Write lines for a KTO job, the only format.")] = True,
    unchanged: Annotated[
        float, typer.Option(min=0, max=1, help="Also learn the region without a rejected edit, with this weight.")
    ] = 0.0,
    project: Project = "",
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Write captured suggestions with their feedback as lines for `quicksilver tune --method kto`."""
    with _objects(project, database_url, pepper) as (objects, owner):
        reported = kto_lines(objects, owner, read_reports(default_home(), objects))
        lines = list(with_unchanged(reported, unchanged))
    target.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    accepted = sum(line["source"] == "accept" for line in lines)
    out.print(f"{len(lines)} lines, {accepted} accepted, in {target}", markup=False, soft_wrap=True)


@feedback.command("propose")
def propose(
    model: Annotated[str, typer.Option(help="Model that the proposal is for.")] = options.DEFAULT_MODEL,
    every_days: Annotated[
        float | None, typer.Option(help="Let the server propose again after so many days, where there is new feedback.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End the schedule.")] = False,
    min_lines: Annotated[int, typer.Option(min=10, help="Reported suggestions that are needed.")] = MIN_LINES,
    key: Annotated[str, typer.Option(help="Id or name of the project's key that is charged; with --project.")] = "",
    project: Project = "",
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Create a KTO job from the feedback. Its adapter is measured, and served only after `feedback accept`."""
    with _objects(project, database_url, pepper) as (objects, owner):
        if off:
            set_schedule(objects, owner, None)
            out.print("no schedule")
            return
        key_id = _paying_key(owner, key, database_url, pepper) if project else None
        if every_days is not None:
            set_schedule(objects, owner, Schedule(model, every_days, key_id))
            out.print(f"a proposal for {model} every {every_days:g} days", soft_wrap=True)
            return
        job = make_proposal(objects, default_home(), owner, model, key_id=key_id, min_lines=min_lines)
        out.print(f"{job.id}: `quicksilver serve` trains it; see its status at /v1/fine_tuning/jobs", soft_wrap=True)


@feedback.command("accept")
def accept_proposal(
    job_id: Annotated[str, typer.Argument(help="Id of the job of the proposal.")],
    project: Project = "",
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Serve the model of a proposal from now on."""
    with _objects(project, database_url, pepper) as (objects, owner):
        out.print(f"model: {accept(objects, owner, job_id)}", highlight=False, soft_wrap=True, markup=False)


@feedback.command("forget")
def forget(project: Project = "", database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Delete all captured suggestions of the project."""
    with _objects(project, database_url, pepper) as (objects, owner):
        out.print(f"{forget_captures(objects, owner)} captured suggestions deleted")


def _paying_key(project_id: str, key: str, database_url: str, pepper: Path | None) -> str:
    """The id of the key that is charged, which must belong to the project."""
    from quicksilver.accounts.identity import OPERATOR
    from quicksilver.accounts.service import open_admin

    if not key:
        raise InvalidRequest("name the key of the project that is charged with --key; see: quicksilver keys list")
    admin = open_admin(*options.accounts_database(database_url, pepper))
    try:
        key_id = find_id(admin, "key", key)
        path = admin.organizations.get_account(OPERATOR, key_id).path
    finally:
        admin.store.close()
    if project_id not in path.split("/"):
        raise InvalidRequest(f"the key {key} is of another project; name one of this project with --key")
    return key_id


@contextmanager
def _objects(project: str, database_url: str, pepper: Path | None) -> Iterator[tuple[ObjectStore, str]]:
    """The store and the owner of the project's objects."""
    from quicksilver.accounts.objects import ObjectStore, open_local
    from quicksilver.accounts.service import open_admin

    if not project:
        local = open_local(default_home() / "objects.db")
        try:
            yield local, ""
        finally:
            local.close()
        return
    admin = open_admin(*options.accounts_database(database_url, pepper))
    try:
        yield ObjectStore(admin.store), find_id(admin, "project", project)
    finally:
        admin.store.close()
