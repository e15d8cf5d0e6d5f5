"""`quicksilver doctor`: checks this machine and suggests one fix for each problem."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from quicksilver.cli.console import out
from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.resolve import default_home, resolve


def doctor() -> None:
    """Check Python, torch, device, memory, disk and models. The exit code is 1 if something must be fixed."""
    table, is_healthy = Table("", "check", "found", "fix"), True
    for name, is_good, found, advice in _checks():
        table.add_row(
            "[green]ok[/]" if is_good else "[red]no[/]", name, escape(found), "" if is_good else escape(advice)
        )
        is_healthy = is_healthy and is_good
    out.print(table)
    if not is_healthy:
        raise typer.Exit(1)


def _checks() -> Iterator[tuple[str, bool, str, str]]:
    version = sys.version_info
    yield "Python", (3, 11) <= version[:2] <= (3, 13), sys.version.split()[0], "use Python 3.11, 3.12 or 3.13"
    yield from _torch_checks()
    free_gb = shutil.disk_usage(_existing(default_home())).free / 1e9
    yield (
        "disk",
        free_gb > 1,
        f"{free_gb:.0f} GB free at {default_home()}",
        "free disk space or set QUICKSILVER_HOME",
    )
    available_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    yield "memory", available_gb > 1, f"{available_gb:.1f} GB free", "a small model needs 1 GB"
    yield "models", _has_model(), ", ".join(_pulled()) or "none", "run: quicksilver pull nano"


def _torch_checks() -> Iterator[tuple[str, bool, str, str]]:
    try:
        import torch
    except ImportError:
        yield "torch", False, "missing", "pip install torch"
        return
    yield "torch", True, torch.__version__, ""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield "GPU", True, f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free", ""
    else:
        yield "GPU", True, f"none; CPU with {torch.get_num_threads()} threads, {_cpu_features(torch)}", ""


def _cpu_features(torch: object) -> str:
    return str(torch.backends.cpu.get_cpu_capability())  # type: ignore[attr-defined]


def _has_model() -> bool:
    return bool(_pulled())


def _pulled() -> list[str]:
    found = []
    for name in load_catalogue().models:
        try:
            resolve(name)
        except ModelNotFound:
            continue
        found.append(name)
    return found


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent, because disk_usage needs an existing path."""
    return path if path.exists() else _existing(path.parent)
