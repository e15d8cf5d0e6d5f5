"""The state of a run as one safetensors file: parameters, AdamW moments, average, and numbers in the header.

No pickle. The file is written under a temporary name and renamed, so a killed run keeps its last complete checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from quicksilver.errors import CheckpointRefused

Facts = Mapping[str, float]


def save_state(
    path: Path, parameters: Mapping[str, Tensor], adamw: torch.optim.AdamW, average: Mapping[str, Tensor], facts: Facts
) -> None:
    tensors = {f"parameter/{name}": t.detach().cpu().contiguous() for name, t in parameters.items()}
    tensors |= {f"average/{name}": t.cpu().contiguous() for name, t in average.items()}
    for name, parameter in parameters.items():
        for key, value in adamw.state.get(parameter, {}).items():
            tensors[f"adamw/{key}/{name}"] = torch.as_tensor(value).detach().cpu().clone().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Named after the process: one that lost its lease may still be writing.
    young = path.with_suffix(f".{os.getpid()}.part")
    save_file(tensors, young, metadata={"facts": json.dumps(dict(facts))})
    os.replace(young, path)


def load_state(
    path: Path, parameters: Mapping[str, Tensor], adamw: torch.optim.AdamW, average: Mapping[str, Tensor]
) -> Facts:
    """Load parameters, optimizer state and average in place. Returns the stored facts."""
    with safe_open(path, framework="pt") as file:
        saved = {name.removeprefix("parameter/") for name in file.keys() if name.startswith("parameter/")}  # noqa: SIM118
        if saved != set(parameters):
            raise CheckpointRefused(f"{path.name} is of another run: its tensors are not this recipe's; remove it")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(file.get_tensor(f"parameter/{name}"))
                if name in average:
                    average[name].copy_(file.get_tensor(f"average/{name}"))
        _load_moments(file, parameters, adamw)
        facts: Facts = json.loads(file.metadata()["facts"])
    return facts


def _load_moments(file: safe_open, parameters: Mapping[str, Tensor], adamw: torch.optim.AdamW) -> None:
    names = set(file.keys())
    for name, parameter in parameters.items():
        state = {}
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if f"adamw/{key}/{name}" in names:
                value = file.get_tensor(f"adamw/{key}/{name}")
                is_host_step = key == "step" and not adamw.defaults["fused"]
                state[key] = value if is_host_step else value.to(parameter.device)
        if state:
            adamw.state[parameter] = state


def saved_facts(path: Path) -> Facts:
    """The numbers in the header of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        facts: Facts = json.loads(file.metadata()["facts"])
    return facts
