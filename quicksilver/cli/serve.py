"""`quicksilver serve`: starts the HTTP API, the playground and the engine workers.

A setting is taken from its flag, else from its environment variable, else from the TOML file. Each model is loaded by a
worker process of its own. This process handles HTTP, or supervises several API processes, and does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from quicksilver.cli import options
from quicksilver.cli.admin_key import checked_key_file
from quicksilver.cli.config_file import parse_file
from quicksilver.cli.serve_run import run_server
from quicksilver.cli.serve_settings import LogSettings, ServeSettings, TuningSettings, model_settings, with_companions
from quicksilver.cli.serve_tracing import check_tracing
from quicksilver.cli.supervisor import run_supervisor
from quicksilver.cli.tables import HYBRID, TABLES, check_names, hybrid_policy, read_tables
from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.hub.resolve import default_home
from quicksilver.server.config import LOOPBACK_HOSTS, ModelCard, ServerConfig, Timeouts
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.processes import default_num_processes
from quicksilver.server.run import check_address, check_ports, run
from quicksilver.server.services import parse_served_names
from quicksilver.worker.pool import ModelPoolConfig


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of the TOML file as defaults of the options."""
    if path is not None:
        settings = parse_file(path)
        options_by_name = {str(option.name): option for option in context.command.params if option.name != "config"}
        check_names(settings, (*options_by_name, *TABLES, HYBRID), path)
        tables = read_tables(settings, path)
        flat = {name: _as_option(settings[name], name) for name in settings if name not in (*TABLES, HYBRID)}
        for name, value in flat.items():
            _check_value(context, options_by_name[name], value, path)
        with_flag = {name: value for name, value in tables.get("engine", {}).items() if name in options_by_name}
        context.default_map = {**with_flag, **flat}
        context.obj = tables
    return path


def _as_option(value: Any, name: str) -> Any:
    """`model` may be one name, and `served_name` a table of names, where the option takes a list."""
    if name == "model" and isinstance(value, str):
        return [value]
    if name == "served_name" and isinstance(value, dict):
        return [f"{alias}={target}" for alias, target in value.items()]
    return value


def _check_value(context: typer.Context, option: Any, value: object, path: Path) -> None:
    """Refuse a value that the option cannot have, with the name of the file: the parser would name the flag."""
    try:
        option.process_value(context, value)
    except (typer.BadParameter, TypeError) as error:
        raise InvalidRequest(f"{path}: {option.name}: {error}", param="config") from error


ConfigFile = Annotated[
    Path | None, typer.Option(callback=_read_config, is_eager=True, envvar="QUICKSILVER_CONFIG", help="TOML file.")
]


def serve(
    context: typer.Context,
    model: options.Models = [options.DEFAULT_MODEL],  # noqa: B006
    served_name: options.ServedName = [],  # noqa: B006
    companion: options.Companion = True,
    pin: options.Pin = [],  # noqa: B006
    idle_unload_s: options.IdleUnload = 0.0,
    api_processes: options.ApiProcesses = 0,
    cluster: options.Cluster = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8480,
    admin_port: options.AdminPort = None,
    admin_host: options.AdminHost = "127.0.0.1",
    accounts: options.WithAccounts = False,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
    signup_credits: options.SignupCredits = options.DEFAULT_CREDITS,
    admin_key_file: options.AdminKeyFile = None,
    allow_anonymous: options.AllowAnonymous = False,
    store: options.StoreObjects = True,
    fine_tuning: options.FineTuning = True,
    allow_host: options.AllowHost = [],  # noqa: B006
    allow_origin: options.AllowOrigin = [],  # noqa: B006
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "auto",
    otlp_endpoint: options.OtlpEndpoint = "",
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    matmul: options.Matmul = "fastest",
    threads: options.Threads = 0,
    yarn: options.Yarn = 1.0,
    system_prompt: options.SystemPrompt = None,
    adapter: options.Adapters = [],  # noqa: B006
    context_len: options.ContextLen = options.ENGINE.context_len,
    max_running: options.MaxRunning = options.ENGINE.max_running,
    max_waiting: options.MaxWaiting = options.ENGINE.max_waiting,
    max_rows: options.MaxRows = options.ENGINE.max_rows,
    kv_bytes: options.KvBytes = options.ENGINE.kv_bytes,
    tree_rows: options.TreeRows = options.ENGINE.tree_rows,
    cuda_graphs: options.CudaGraphs = options.ENGINE.cuda_graphs,
    config: ConfigFile = None,
) -> None:
    """Serve a model over HTTP: the APIs of OpenAI and of Inception (Mercury), and the playground at /."""
    log_to_stderr(log_level, log_format)
    models, companions = with_companions(model) if companion else (list(model), {})
    tables: dict[str, dict[str, Any]] = context.obj or {}
    load = {"device": device, "weights": weights, "threads": threads, "yarn": yarn}
    found = model_settings(models, pin, load, _engine_settings(context, tables), adapter, companions)
    settings = ServeSettings(
        models=found,
        server=_checked(_server_config(context.params, found[0].card, tables), has_accounts=accounts),
        accounts=options.accounts_database(database_url, pepper, signup_credits) if accounts else None,
        admin_key_file=checked_key_file(admin_key_file),
        **_records(tables, idle_unload_s),
        system_prompt=system_prompt,
        companions=companions,
        served_names=parse_served_names(served_name),
        hybrid=hybrid_policy(tables.get(HYBRID), [each.files.name for each in found]),
    )
    _run(settings, api_processes or default_num_processes(device), LogSettings(log_level, log_format), cluster)


def _records(tables: Mapping[str, dict[str, Any]], idle_unload_s: float) -> dict[str, Any]:
    """Fields of ServeSettings that the tables of the file set."""
    return {
        "compile_pool": PoolConfig(**tables.get("compile_pool", {})),
        "model_pool": ModelPoolConfig(idle_unload_s=idle_unload_s, **tables.get("models", {})),
        "tuning": TuningSettings(**tables.get("tuning", {})),
    }


def _run(settings: ServeSettings, num_processes: int, logs: LogSettings, cluster: Path | None) -> None:
    # Refuses names of models that are not served, before anything is loaded.
    settings.name_table()
    if cluster is not None:
        from quicksilver.cli.cluster import run_with_cluster

        run(run_with_cluster(settings, cluster))
        return
    run(run_server(settings) if num_processes == 1 else run_supervisor(settings, num_processes, logs))


def _checked(server: ServerConfig, *, has_accounts: bool) -> ServerConfig:
    """Refuses, before anything is loaded, what cannot be served."""
    check_address(server, has_accounts=has_accounts)
    check_ports(server)
    check_tracing(server.otlp_endpoint)
    return server


def _server_config(params: Mapping[str, Any], card: ModelCard, tables: Mapping[str, dict[str, Any]]) -> ServerConfig:
    return ServerConfig(
        host=params["host"],
        port=params["port"],
        admin_host=params["admin_host"],
        admin_port=_admin_port(params["port"], params["admin_port"]),
        hosts=(*LOOPBACK_HOSTS, *params["allow_host"]),
        origins=tuple(params["allow_origin"]),
        allow_anonymous=params["allow_anonymous"],
        stores=params["store"],
        otlp_endpoint=params["otlp_endpoint"],
        tunes=params["fine_tuning"],
        home=default_home(),
        card=card,
        timeouts=Timeouts(**tables.get("timeouts", {})),
        **tables.get("limits", {}),
    )


def _engine_settings(context: typer.Context, tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The fields of EngineConfig from the file and from the flags. Values out of range are refused here, before the
    worker starts."""
    flags = {field.name: context.params[field.name] for field in fields(EngineConfig) if field.name in context.params}
    EngineConfig(**(settings := {**tables.get("engine", {}), **flags}))
    return settings


def _admin_port(port: int, chosen: int | None) -> int:
    """Follows the main port, so that a second server needs one option only."""
    if chosen is not None:
        return chosen
    return 0 if port == 0 else port + 1 if port < 65535 else port - 1
