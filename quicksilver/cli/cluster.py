"""`quicksilver cluster`: engine replicas on a Ray cluster, and an API process in front of them."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from quicksilver.cli.console import errors, out
from quicksilver.cli.serve_run import open_services, print_announcement
from quicksilver.cli.serve_settings import ServeSettings
from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig
from quicksilver.errors import InvalidRequest
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.run import is_loopback, serve_until_stopped

cluster = typer.Typer(no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="TOML file with the models and their replicas.")]


@cluster.command()
def up(
    file: File,
    serve: Annotated[bool, typer.Option(help="Also serve the API from this process.")] = True,
    config: Annotated[Path | None, typer.Option(help="TOML file of the API process, as for `serve`.")] = None,
    node_ip: Annotated[
        str, typer.Option(help="Address of this machine for a Ray cluster that is started here.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Accept a --node-ip that other machines can reach.")
    ] = False,
) -> None:
    """Start the engines of the file, on a running Ray cluster or on this machine, and an API process."""
    found = ClusterConfig.read(file)
    _check_node_ip(node_ip, allow_remote)
    with errors.status("starting the engines"):
        deploy.connect(found, node_ip)
        deploy.deploy(found)
    errors.print(_table(deploy.status_of(found)))
    if serve:
        from quicksilver.cli.app import main

        # The file names all models, so the catalogue adds none (no companion, the code model of a chat model).
        models = [word for model in found.models for word in ("--model", model.model)]
        main(
            ["serve", "--cluster", str(file), "--no-companion", *models, *(["--config", str(config)] if config else [])]
        )
    elif not found.address:
        errors.print("The cluster ends with this process; press Ctrl-C.")
        asyncio.run(_until_interrupted())


def _check_node_ip(node_ip: str, allow_remote: bool) -> None:
    """Ray executes code for every client that reaches its ports and has the token."""
    if not (is_loopback(node_ip) or allow_remote):
        raise InvalidRequest(
            f"--node-ip {node_ip}: other machines can reach Ray there; block its ports with a firewall and add"
            " --allow-remote",
            param="node_ip",
        )


async def _until_interrupted() -> None:
    await asyncio.Event().wait()


@cluster.command()
def status(file: File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the nodes of the cluster and the replicas of each model."""
    found = _joined(file)
    state = deploy.status_of(found)
    if as_json:
        typer.echo(json.dumps(state))
    else:
        out.print(_table(state))


@cluster.command()
def drain(
    file: File,
    node: Annotated[str, typer.Argument(help="Node id, as `cluster status` shows it.")],
    seconds: Annotated[float, typer.Option(min=1.0, help="Time for open requests.")] = 60.0,
) -> None:
    """Move all replicas away from a node before it is stopped."""
    _joined(file)
    deploy.drain(node, seconds)


@cluster.command()
def down(file: File) -> None:
    """End the engines of the file; the Ray cluster keeps running."""
    deploy.take_down(_joined(file))


def _joined(file: Path) -> ClusterConfig:
    """The file's cluster, which this process started or joins."""
    found = ClusterConfig.read(file)
    if not found.address and not deploy.is_connected():
        raise InvalidRequest(f"{file}: set `address`; without it the cluster belongs to `cluster up`", param="address")
    deploy.connect(found)
    return found


def _table(state: dict[str, list[dict[str, object]]]) -> Table:
    table = Table("model", "status", "replicas", "least", "most", title=f"{len(state['nodes'])} nodes")
    for model in state["models"]:
        cells = ("model", "status", "replicas", "min_replicas", "max_replicas")
        table.add_row(*(str(model[cell]) for cell in cells))
    alive = ("dead", "alive")
    lines = (f"{each['id']} {each['address']} {alive[bool(each['is_alive'])]}" for each in state["nodes"])
    table.caption = "\n".join(lines)
    return table


async def run_with_cluster(settings: ServeSettings, file: Path) -> None:
    """An API process whose engines are the replicas of the cluster."""
    found = _joined(file)
    async with AsyncExitStack() as stack:
        engines = {}
        for model in settings.models:
            engine = deploy.open_engine(_cluster_name(found, model.worker.model))
            engines[model.files.name] = await engine.start()
            stack.push_async_callback(engine.close)
        services = await open_services(stack, settings, engines)

        def announce(config: ServerConfig) -> None:
            print_announcement(settings, services.engine.info, config)

        await serve_until_stopped(build_app(services), build_admin_app(services), settings.server, announce)


def _cluster_name(config: ClusterConfig, model: str) -> str:
    if model not in (each.model for each in config.models):
        raise InvalidRequest(f"--model {model}: the cluster file has no such model", param="model")
    return model
