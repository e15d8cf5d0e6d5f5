"""Tables of the TOML file of `serve`: settings that have no flag of their own.

`[engine]`, `[compile_pool]`, `[timeouts]` and `[limits]` set the fields of the configuration records. Unknown names and
values of the wrong type are refused with the file, the table and the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig, Timeouts

LIMITS = (
    *("body_bytes", "public_body_bytes", "header_bytes", "linger_bytes", "num_headers", "max_open", "max_open_public"),
    *("keep_alive_comment_s", "frames_per_s", "temperature", "reasoning_effort"),
)


def _names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


# Table -> the record and the fields that it sets.
TABLES: dict[str, tuple[type, tuple[str, ...]]] = {
    "engine": (EngineConfig, _names(EngineConfig)),
    "compile_pool": (PoolConfig, _names(PoolConfig)),
    "timeouts": (Timeouts, _names(Timeouts)),
    "limits": (ServerConfig, LIMITS),
}


def read_tables(settings: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a parsed file, checked against their records. Other settings are ignored."""
    return {name: _read_table(name, settings[name], path) for name in TABLES if name in settings}


def _read_table(name: str, table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InvalidRequest(f"{path}: {name} must be a table: [{name}]", param="config")
    record, known = TABLES[name]
    hints = get_type_hints(record)
    for key, value in table.items():
        if key not in known:
            raise InvalidRequest(
                f"{path}: unknown setting {key!r} in [{name}]; known: {', '.join(known)}", param="config"
            )
        if not _fits(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise InvalidRequest(f"{path}: {key} in [{name}] must be of type {wanted}, not {value!r}", param="config")
    return dict(table)


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
