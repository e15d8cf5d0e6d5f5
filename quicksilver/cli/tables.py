"""Tables of the TOML file of `serve`: settings that have no flag of their own.

`[engine]`, `[compile_pool]`, `[timeouts]`, `[limits]`, `[models]` and `[tuning]` set the fields of the configuration
records. `[hybrid]` turns hybrid routing on.
Unknown names and values of the wrong type are refused with the file, the table and the name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from quicksilver.cli.serve_settings import TuningSettings
from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig, Timeouts
from quicksilver.server.hybrid.policy import HybridPolicy, parse_policy, read_key
from quicksilver.worker.pool import ModelPoolConfig

LIMITS = (
    *("body_bytes", "public_body_bytes", "header_bytes", "linger_bytes", "num_headers"),
    *("max_connections", "max_open", "max_open_public"),
    *("keep_alive_comment_s", "frames_per_s", "temperature", "reasoning_effort", "edit_min_logprob"),
    *("max_in_flight_waiting", "in_flight_wait_s", "start_within_s"),
    *("stored_bytes", "stored_days", "file_bytes", "batch_lines", "tuning_jobs"),
)


HYBRID = "hybrid"


def _names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


# Table -> the record and the fields that it sets.
TABLES: dict[str, tuple[type, tuple[str, ...]]] = {
    "engine": (EngineConfig, _names(EngineConfig)),
    "compile_pool": (PoolConfig, _names(PoolConfig)),
    "timeouts": (Timeouts, _names(Timeouts)),
    "limits": (ServerConfig, LIMITS),
    "models": (ModelPoolConfig, ("load_wait_s", "max_load_waiting", "spare")),
    "tuning": (TuningSettings, _names(TuningSettings)),
}


def check_names(given: Iterable[str], known: Sequence[str], path: Path, where: str = "") -> None:
    """Refuse the first unknown name, with the most similar known one."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"{path}: unknown setting {name!r}{where}{hint}", param="config")


def read_tables(settings: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a parsed file, checked against their records. Other settings are ignored."""
    tables = {name: _read_table(name, settings[name], path) for name in TABLES if name in settings}
    if HYBRID in settings:
        _parse_hybrid(settings[HYBRID], path)
        tables[HYBRID] = settings[HYBRID]
    return tables


def _parse_hybrid(table: Any, path: Path) -> HybridPolicy:
    if not isinstance(table, dict):
        raise InvalidRequest(f"{path}: {HYBRID} must be a table: [{HYBRID}]", param="config")
    try:
        return parse_policy(table)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}", param="config") from None


def hybrid_policy(table: Mapping[str, Any] | None, models: Sequence[str]) -> HybridPolicy | None:
    """The policy of a table that `read_tables` returned. Raises InvalidRequest if it names a target that is not one of
    `models`, or a key that is not in the environment."""
    if table is None:
        return None
    policy = parse_policy(table)
    policy.check(models)
    for upstream in policy.upstreams:
        read_key(upstream)
    return policy


def _read_table(name: str, table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InvalidRequest(f"{path}: {name} must be a table: [{name}]", param="config")
    record, known = TABLES[name]
    hints = get_type_hints(record)
    check_names(table, known, path, f" in [{name}]")
    for key, value in table.items():
        if not _fits(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise InvalidRequest(f"{path}: {key} in [{name}] must be of type {wanted}, not {value!r}", param="config")
    return dict(table)


def _fits(value: Any, hint: Any) -> bool:
    if hint in (float, float | None):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
