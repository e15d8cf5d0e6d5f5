"""All settings of one `serve` command, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quicksilver.accounts.config import AccountsConfig
from quicksilver.adapters import AdapterRef
from quicksilver.cli.download import find_with_tokenizer
from quicksilver.cli.serve_adapters import adapter_model, share_bases, split_adapters
from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.errors import InvalidRequest
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.resolve import ModelFiles
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.hybrid.policy import HybridPolicy
from quicksilver.server.hybrid.rules import AUTO_NAMES
from quicksilver.server.services import NameTable, name_table
from quicksilver.worker.pool import ModelPoolConfig
from quicksilver.worker.program import WorkerConfig


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One served model. `worker` names it as the user did; its files have the name that requests use."""

    files: ModelFiles
    worker: WorkerConfig
    is_pinned: bool = False
    # Of a model without a worker: the model whose worker it uses, and the adapter of its requests.
    base: str | None = None
    adapter: AdapterRef | None = None
    is_companion: bool = False

    @property
    def parent(self) -> str | None:
        """The base of an adapter in model lists and prices. A companion is a model of the catalogue, whether or not it
        shares a worker."""
        return None if self.is_companion else self.base

    @property
    def card(self) -> ModelCard:
        return ModelCard(id=self.files.name, name=f"quicksilver {self.files.name}")


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """Where fine-tuning jobs are trained. `threads` 0: half of the cores."""

    device: str = "auto"
    threads: int = 0
    # Evaluation pack (`.jsonl.xz`) that training data is checked against; empty: none.
    evals: str = ""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    # The first one is the default.
    models: tuple[ModelSettings, ...]
    server: ServerConfig
    # Database URL and configuration of the accounts, or None to serve without accounts.
    accounts: tuple[str, AccountsConfig] | None
    compile_pool: PoolConfig
    # Where the first admin key is written; None: it is printed.
    admin_key_file: Path | None = None
    # System message of chats that have none; None: the default of the model.
    system_prompt: str | None = None
    model_pool: ModelPoolConfig = field(default_factory=ModelPoolConfig)
    # Model -> the model that answers code routes in its place.
    companions: Mapping[str, str] = field(default_factory=dict)
    # Further names -> models.
    served_names: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    hybrid: HybridPolicy | None = None

    def name_table(self) -> NameTable:
        """Raises InvalidRequest for names of models that are not served. With hybrid routing, `auto` is a name of the
        default model for every route but chat completions."""
        auto = dict.fromkeys(AUTO_NAMES, self.ids[0]) if self.hybrid else {}
        if taken := sorted({*auto} & {*self.ids, *self.served_names}):
            raise InvalidRequest(f"with hybrid routing, {taken[0]} cannot name a model", param="served_name")
        return name_table(self.ids, self.server, self.companions, {**auto, **self.served_names})

    @property
    def default(self) -> ModelSettings:
        return self.models[0]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(model.files.name for model in self.models)

    @property
    def with_workers(self) -> tuple[ModelSettings, ...]:
        return tuple(model for model in self.models if model.adapter is None)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str
    format: str


def companion_of(model: str) -> str | None:
    """The catalogue's companion of a model; None for a path and for a model without one."""
    entry = load_catalogue().models.get(model)
    return entry.companion if entry is not None else None


def with_companions(models: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The models with their companions after them, and which model has which companion."""
    companions = {model: found for model in models if (found := companion_of(model)) is not None}
    return list(dict.fromkeys((*models, *companions.values()))), companions


def _with_adapters(model: ModelSettings, adapters: Sequence[Path]) -> ModelSettings:
    paths = tuple(str(path.absolute()) for path in adapters)
    return replace(model, files=model.files.with_adapters(adapters), worker=replace(model.worker, adapters=list(paths)))


def model_settings(
    models: Sequence[str],
    pins: Sequence[str],
    load: dict[str, Any],
    engine: dict[str, Any],
    adapters: Sequence[Path] = (),
    companions: Mapping[str, str] | None = None,
) -> tuple[ModelSettings, ...]:
    """Every model with its files, which must be on this machine. Pins are names as the user gave them. Files of
    `adapters` are for the first model; entries NAME=PATH are models of their own."""
    unknown = [pin for pin in pins if pin not in models]
    if unknown:
        raise InvalidRequest(f"--pin {unknown[0]}: this model is not served here", param="pin")
    settings = tuple(
        ModelSettings(find_with_tokenizer(model), WorkerConfig(model, load, engine), model in pins) for model in models
    )
    own, named = split_adapters(adapters)
    if own:
        settings = (_with_adapters(settings[0], own), *settings[1:])
    settings = share_bases(settings, companions or {}, load.get("device", "auto"))
    settings += tuple(adapter_model(name, path, settings) for name, path in named.items())
    names = [each.files.name for each in settings]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"two models have the name {twice}; give one of them another file name", param="model")
    return settings
