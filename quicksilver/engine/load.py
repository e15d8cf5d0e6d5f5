"""Loads a checkpoint and its adapters into an Engine: picks device and number format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from quicksilver.backends.cpu.support import unsupported_reason as cpu_unsupported
from quicksilver.core import setting
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.memory import check_memory, free_memory
from quicksilver.errors import CheckpointRefused
from quicksilver.hub.resolve import ModelFiles, default_home
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter, merge_skill
from quicksilver.model.assemble import extend_context
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.checkpoint import build, load_model, open_source
from quicksilver.model.files.draft_adapter import load_draft_adapter
from quicksilver.model.formats.weight_formats import AUTO, check_format, formats_for, formats_of, unsupported_format
from quicksilver.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The device of the weights, and their number format."""

    device: str = setting("auto", "cpu, cuda or auto.")
    weights: str = setting(AUTO, "float32, bfloat16, int8 (CPU), fp8 or int4 (CUDA), or auto.")
    threads: int = setting(0, "CPU threads; 0 takes torch's default.")
    yarn: float = setting(1.0, "Extend the checkpoint's context by this factor with YaRN.")


# On a CPU the time of a forward grows with every row. Short canvases are faster there. A small row budget costs no
# throughput and bounds how long a prompt or a scoring request of one caller delays the others.
CPU_CANVAS_ROWS, CPU_MAX_ROWS = 8, 64
# Open rows of one tenant, besides one full context: about 7 s of work for a 135M model on two cores.
CPU_TENANT_ROWS = 4096
# Duration of a forward while several tenants are active. Longer ones delay other tenants, shorter ones cost throughput.
CPU_SHARED_STEP_MS = 16.0


def for_serving(config: EngineConfig, load: LoadConfig) -> EngineConfig:
    """On a CPU, replaces the defaults of limits that bound the delay of one caller by others. The text stays the
    same."""
    if pick_device(load.device) != "cpu":
        return config
    has_default_rows = config.max_rows == EngineConfig().max_rows
    return replace(
        config,
        canvas_rows=config.canvas_rows or CPU_CANVAS_ROWS,
        max_tenant_rows=config.max_tenant_rows or CPU_TENANT_ROWS,
        shared_step_ms=config.shared_step_ms or CPU_SHARED_STEP_MS,
        max_rows=CPU_MAX_ROWS if has_default_rows else config.max_rows,
    )


def load_engine(checkpoint: ModelFiles, load: LoadConfig, config: EngineConfig) -> Engine:
    """An engine without structured output; the caller may set `Engine.constraints`."""
    if load.threads:
        torch.set_num_threads(load.threads)
    device, network = pick_device(load.device), open_source(checkpoint.weights).config
    check_memory(network, weights_for(network, load.weights, device), device, config, free_memory(device))
    model = load_transformer(checkpoint, load)
    if load.yarn != 1:
        extend_context(model, load.yarn)
    if config.stale_prefix and model.config.dialect.is_full:
        model.config = replace(model.config, dialect=replace(model.config.dialect, has_stale_prefix=True))
    return build_engine(model, checkpoint.name, config, checkpoint.sha256)


def load_transformer(checkpoint: ModelFiles, load: LoadConfig) -> Transformer:
    """The base model with the skill adapter merged and the canvas adapter attached, in the number format of `load`."""
    device, config = pick_device(load.device), open_source(checkpoint.weights).config
    weights = weights_for(config, load.weights, device)
    if weights == "int8":
        return load_int8(checkpoint, config)
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    model = load_model(checkpoint.weights, dtype=dtype, device=device)
    # The CUDA backend rounds 16-bit weights to fp8 or int4 when it is built.
    model.weight_format = weights if weights in ("fp8", "int4") else None
    if checkpoint.skill is not None:
        merge_skill(model, load_adapter(checkpoint.skill))
    if checkpoint.canvas is not None:
        _attach(model, checkpoint.canvas)
    draft = load_draft_adapter(checkpoint.weights, config) if config.dialect.has_draft_seed else None
    if draft is not None:
        attach_canvas(model, draft)
    return model.requires_grad_(False)


def load_int8(checkpoint: ModelFiles, config: ModelConfig) -> Transformer:
    """As `load_transformer` for int8 on a CPU: packed tensor by tensor, and cached for the next start."""
    # Imported here: these modules import the compiler.
    from quicksilver.backends.cpu.load_packed import PackTensors
    from quicksilver.backends.cpu.packed_cache import load_or_pack
    from quicksilver.backends.cpu.quantise import quantise_canvas

    def make() -> Transformer:
        skill = load_adapter(checkpoint.skill) if checkpoint.skill is not None else None
        source = open_source(checkpoint.weights)
        model = build(source, torch.float32, "cpu", PackTensors(skill, source))
        model.weight_format = "int8"
        if checkpoint.canvas is not None:
            _attach(model, checkpoint.canvas)
            quantise_canvas(model)
        return model.requires_grad_(False)

    files = [path for path in (checkpoint.weights, checkpoint.skill, checkpoint.canvas) if path is not None]
    if not all(path.is_file() for path in files):
        return make()
    return load_or_pack(default_home() / "prepared", checkpoint.name, files, config, make).requires_grad_(False)


def _attach(model: Transformer, path: Path) -> None:
    adapter = load_adapter(path)
    if not isinstance(adapter, CanvasAdapter):
        raise CheckpointRefused(f"{path}: a canvas adapter has mask embeddings, and this file has none")
    attach_canvas(model, adapter)


def weights_for(config: ModelConfig, setting: str, device: str) -> str:
    """As `pick_weights`, for a network that the compiled backends may not support."""
    weights = pick_weights(setting, device)
    supported = formats_for(config, device)
    if weights in supported:
        return weights
    if setting == AUTO:
        return "float32"
    raise unsupported_format(setting, f"{config.family} runs in {', '.join(supported)} only")


def pick_weights(setting: str, device: str) -> str:
    """The format that `setting` means on `device` (cpu or cuda). Raises InvalidRequest where it cannot be used.

    auto is bfloat16 on CUDA, int8 on a CPU that runs the compiled backend, and float32 on other CPUs.
    """
    if setting == AUTO:
        cpu = "int8" if cpu_unsupported() is None else "float32"
        return "bfloat16" if device == "cuda" else cpu
    check_format(setting, device)
    reason = cpu_unsupported()
    if setting == "int8" and reason is not None:
        others = [name for name in (AUTO, *formats_of(device)) if name != "int8"]
        raise unsupported_format(setting, f"{reason}; use {', '.join(others)}")
    return setting


def pick_device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
