"""Adapters of a `serve` command: those that are served under names of their own, and companions that share a base.

Both are models without a worker: their requests run in the worker of another model, with an adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quicksilver.errors import InvalidRequest
from quicksilver.hub.adapter_files import check_adapter_name, find_adapter
from quicksilver.hub.files import has_tensor
from quicksilver.worker.pool import EnginePool

if TYPE_CHECKING:
    from quicksilver.cli.serve_settings import ModelSettings

# Device files of accelerators. Where one exists, a worker with the device `auto` may use it.
ACCELERATORS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def split_adapters(entries: Sequence[Path]) -> tuple[list[Path], dict[str, Path]]:
    """Files that replace the adapters of the model itself, and `NAME=PATH` entries by name."""
    own, named = list[Path](), dict[str, Path]()
    for entry in entries:
        name, equals, path = str(entry).partition("=")
        if not equals or "/" in name or entry.exists():
            own.append(entry)
        elif name in named:
            raise InvalidRequest(f"--adapter gives {name} two files", param="adapter")
        else:
            named[name] = Path(path)
    return own, named


def adapter_model(name: str, path: Path, models: Sequence[ModelSettings]) -> ModelSettings:
    """`NAME` or `BASE:NAME` as a model BASE:NAME; without a base it belongs to the first model."""
    base_name, colon, short = name.rpartition(":")
    base = next((model for model in models if not colon or model.files.name == base_name), None)
    if base is None:
        raise InvalidRequest(f"--adapter {name}={path}: {base_name} is not served here", param="adapter")
    return on_base(base, f"{base.files.name}:{check_adapter_name(short)}", path)


def on_base(base: ModelSettings, name: str, path: Path) -> ModelSettings:
    """A model that runs in the worker of `base` with the adapter at `path`."""
    ref = find_adapter(path)
    has_roles = path.is_file() and has_tensor(path, "embedding.ids")
    files = replace(base.files, name=name, skill=path if has_roles else base.files.skill)
    return replace(base, files=files, is_pinned=False, base=base.files.name, adapter=ref)


def share_bases(
    models: Sequence[ModelSettings], companions: Mapping[str, str], device: str
) -> tuple[ModelSettings, ...]:
    """Companions as adapters of their models, where the backend applies adapters: one base in memory instead of two.

    A companion has the same base file and a skill. On an accelerator a merged skill is faster than an adapter of single
    requests, so a server that may run on one keeps two workers.
    """
    if not runs_on_cpu(device):
        return tuple(models)
    by_name = {model.files.name: model for model in models}
    shared: dict[str, ModelSettings] = {}
    for name, other in companions.items():
        base, companion = by_name[name], by_name[other]
        skill = companion.files.skill
        if base.files.skill is None and skill is not None and base.files.weights == companion.files.weights:
            shared[other] = replace(on_base(base, other, skill), is_companion=True)
    return tuple(shared.get(model.files.name, model) for model in models)


def runs_on_cpu(device: str) -> bool:
    """Whether a worker with this device setting certainly computes on the CPU. torch is not imported to find out."""
    return device == "cpu" or (device == "auto" and not any(Path(path).exists() for path in ACCELERATORS))


async def check_adapters(models: Sequence[ModelSettings], pool: EnginePool) -> None:
    """Loads every adapter of a model that is loaded, so that a server with an adapter that does not fit does not
    start. Raises the refusal with the name of the adapter."""
    for model in models:
        if model.adapter is None or model.base is None or not pool.engines[model.base].is_loaded:
            continue
        engine = pool.engines[model.base]
        if not engine.info.supports_adapters:
            raise InvalidRequest(
                f"{model.files.name}: the backend on {engine.info.device} cannot apply adapters to single requests; "
                "give it memory with adapter_bytes, use --no-cuda-graphs or --device cpu, or merge one adapter with "
                "--adapter PATH",
                param="adapter",
            )
        await engine.load_adapter(model.adapter)
