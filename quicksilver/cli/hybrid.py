"""`quicksilver hybrid explain`: which targets hybrid routing would try for a request, and why. Nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from quicksilver.cli import options
from quicksilver.cli.config_file import parse_file
from quicksilver.cli.serve_settings import with_companions
from quicksilver.cli.tables import HYBRID, read_tables
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.http.body import parse_body
from quicksilver.server.hybrid.policy import GateSettings, HybridPolicy, parse_policy
from quicksilver.server.hybrid.rules import AUTO_NAMES, CallFacts, CallRoute, choose_route, facts_of, profile_of

hybrid = typer.Typer(help="Explain hybrid routing.", no_args_is_help=True)


@hybrid.callback()
def _group() -> None:
    pass


@hybrid.command("explain")
def explain(
    body: Annotated[Path, typer.Argument(help="File with the JSON body of a chat completion.")],
    config: Annotated[Path, typer.Option(envvar="QUICKSILVER_CONFIG", help="The TOML file of `serve`.")],
    project: Annotated[str, typer.Option(help="Id of the project that sends it.")] = "",
    may_leave: Annotated[bool, typer.Option("--may-leave", help="The project has consented.")] = False,
) -> None:
    """Print the targets that would be tried for a request with `model: "auto"`, in order."""
    policy, models = read_policy(config)
    request = parse_body(_read(body), ChatBody)
    profile = profile_of(request.model)
    if profile is None:
        raise InvalidRequest(f"{body}: hybrid routing applies to the models {', '.join(AUTO_NAMES)}", param="model")
    facts = facts_of(request, profile, project)
    route = choose_route(policy, facts, models[0], may_leave=may_leave or policy.anonymous_may_leave)
    typer.echo("\n".join(lines(policy, facts, route)))


def read_policy(config: Path) -> tuple[HybridPolicy, list[str]]:
    """The policy of a file, and the models that it serves."""
    settings = parse_file(config)
    table: dict[str, Any] | None = read_tables(settings, config).get(HYBRID)
    if table is None:
        raise InvalidRequest(f"{config} has no table [{HYBRID}], so hybrid routing is off", param="config")
    named = settings.get("model", options.DEFAULT_MODEL)
    models = [named] if isinstance(named, str) else list(named)
    if settings.get("companion", True):
        models, _ = with_companions(models)
    policy = parse_policy(table)
    policy.check(models)
    return policy, models


def lines(policy: HybridPolicy, facts: CallFacts, route: CallRoute) -> Iterator[str]:
    yield f"request: {', '.join(sorted(facts.kinds))}; {facts.num_chars} characters; profile {facts.profile}"
    yield f"rule: {route.rule}"
    for position, name in enumerate(route.targets, start=1):
        upstream = policy.upstream(name)
        where = f"upstream {upstream.url}, model {upstream.model}" if upstream else "model of this server"
        yield f"{position}. {name} ({where})"
        if position < len(route.targets):
            yield f"   next target: {'if it fails' if route.gate is None else describe(route.gate)}"
    for name, reason in route.skipped.items():
        yield f"-  {name}: not tried, {reason}"


def describe(gate: GateSettings) -> str:
    """The conditions under which an answer is passed over."""
    given = {name: value for name, value in msgspec.structs.asdict(gate).items() if value not in (None, "", False)}
    parts = ["it fails"]
    if given.pop("complete", False):
        parts.append("the token limit cuts it off")
    least = given.pop("question_probability", None)
    if (question := given.pop("question", "")) and least is not None:
        parts.append(f"P(yes) < {least:g} for {question!r}")
    parts += [f"{name} < {value:g}" for name, value in given.items()]
    return "if " + ", or ".join(parts)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="body") from None
