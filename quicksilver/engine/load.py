"""Files -> a running Engine: weights, adapters, number format and threads, chosen for the machine at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import ConstraintFactory, Engine
from quicksilver.hub.resolve import Checkpoint, default_home
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter, merge_skill
from quicksilver.model.assemble import stretch_context
from quicksilver.model.files.checkpoint import build, load_model, open_source
from quicksilver.model.formats.quantise import best_cpu_scheme, check_scheme, mark, quantise_model
from quicksilver.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How weights are held. `auto` picks by device and by what the CPU can do."""

    device: str = "auto"
    """cpu, cuda, or auto."""
    weights: str = "auto"
    """float32, bfloat16, int8, int8-grouped, int8-dynamic, int4, or auto."""
    canvas_form: str = "gated"
    """gated (LoRA on canvas rows) or merged (second weights)."""
    threads: int = 0
    """CPU threads; 0 leaves torch's choice. Compiled loops take them over, and torch keeps one."""
    yarn: float = 1.0
    """How many times the checkpoint's context is stretched, by YaRN; 1 leaves it."""


CPU_CANVAS_ROWS = 8
"""On a CPU every row costs: longer canvases draft more and still answer later (docs/reference/performance.md)."""


def for_serving(config: EngineConfig, load: LoadConfig) -> EngineConfig:
    """What a server wants on a CPU where the operator said nothing: short canvases. Their text is the same."""
    if config.canvas_rows or pick_device(load.device) != "cpu":
        return config
    return replace(config, canvas_rows=CPU_CANVAS_ROWS)


def load_engine(
    checkpoint: Checkpoint, load: LoadConfig, config: EngineConfig, constraints: ConstraintFactory | None = None
) -> Engine:
    if load.threads:
        torch.set_num_threads(load.threads)
    model = load_transformer(checkpoint, load)
    if load.yarn != 1:
        stretch_context(model, load.yarn)
    return build_engine(model, checkpoint.name, config, constraints)


def load_transformer(checkpoint: Checkpoint, load: LoadConfig) -> Transformer:
    """The base with its skill merged in and its canvas attached, in the number format asked for."""
    device = pick_device(load.device)
    scheme = load.weights if load.weights != "auto" else best_scheme(device)
    if scheme == "int8-grouped":
        return load_grouped(checkpoint, load.canvas_form)
    dtype = torch.bfloat16 if scheme == "bfloat16" else torch.float32
    model = load_model(checkpoint.weights, dtype=dtype, device=device)
    if checkpoint.skill is not None:
        merge_skill(model, load_adapter(checkpoint.skill))
    if scheme.startswith("int"):
        quantise_model(model, scheme)
    if checkpoint.canvas is not None:
        _attach(model, checkpoint.canvas, load.canvas_form)
    return model.requires_grad_(False)


def load_grouped(checkpoint: Checkpoint, canvas_form: str) -> Transformer:
    """As `load_transformer` for int8-grouped, tensor by tensor, and kept ready for the next start."""
    # Imported here: they bring the compiler of the loops along.
    from quicksilver.backends.cpu.load_grouped import PutGrouped
    from quicksilver.backends.cpu.packed_cache import prepared

    def make() -> Transformer:
        check_scheme("int8-grouped", torch.device("cpu"))
        skill = load_adapter(checkpoint.skill) if checkpoint.skill is not None else None
        source = open_source(checkpoint.weights)
        model = build(source, torch.float32, "cpu", PutGrouped(skill, source))
        mark(model, "int8-grouped")
        if checkpoint.canvas is not None:
            _attach(model, checkpoint.canvas, canvas_form)
        return model.requires_grad_(False)

    files = [path for path in (checkpoint.weights, checkpoint.skill, checkpoint.canvas) if path is not None]
    if not all(path.is_file() for path in files):
        return make()
    return prepared(default_home() / "prepared", checkpoint.name, files, make).requires_grad_(False)


def _attach(model: Transformer, path: Path, form: str) -> None:
    adapter = load_adapter(path)
    assert isinstance(adapter, CanvasAdapter)
    attach_canvas(model, adapter, form=form)


def best_scheme(device: str) -> str:
    """bfloat16 on a GPU; on a CPU what it computes fastest without a row's numbers depending on its batch mates."""
    return "bfloat16" if device == "cuda" else best_cpu_scheme()


def pick_device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
