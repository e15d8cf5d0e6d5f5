"""The models of one server, the names that select them, and the state of each.

A name selects one model for chat routes and one for code routes. Both are the same model, except where the catalogue
names a companion: a second model that answers the code routes in place of the first. Every name that is not the id of a
model is an alias. A reply contains the model name that the request used.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from quicksilver.core import EngineClient, EngineInfo, EngineState
from quicksilver.errors import EngineUnavailable, InvalidRequest, ModelNotFound
from quicksilver.server.config import ModelCard, Pricing, ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.endpoints.decisions.calibration import calibration_of
from quicksilver.server.endpoints.models.wire import ModelList, ModelReply, PricingReply
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer


class RouteKind(StrEnum):
    """`CODE`: fill-in-the-middle, next edit and apply edit. `CHAT`: every other route that names a model."""

    CHAT = "chat"
    CODE = "code"


@runtime_checkable
class LoadableEngine(Protocol):
    """An engine client whose model is loaded on demand."""

    @property
    def is_loaded(self) -> bool:
        """Whether `load` returns at once."""

    async def load(self) -> None:
        """Returns when the model is loaded. Raises EngineUnavailable if that takes longer than a request may wait."""


def is_loaded(engine: EngineClient) -> bool:
    """False for a model that `load` has to wait for."""
    return not isinstance(engine, LoadableEngine) or engine.is_loaded


async def load(engine: EngineClient) -> None:
    """As `LoadableEngine.load`; returns at once if the model is not loaded on demand."""
    if isinstance(engine, LoadableEngine):
        await engine.load()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model beside the default one: what a request to it uses instead of the default's objects."""

    card: ModelCard
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    encoders: EncoderPool | None = None
    # Of an adapter: the id of its base model.
    base: str | None = None


@dataclass(frozen=True, slots=True)
class NameTable:
    """Names -> ids of models, per kind of route, in the order of the model lists."""

    chat: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)

    def model_of(self, name: str, kind: RouteKind) -> str | None:
        """A name that one kind of route lists is accepted by the other too."""
        tables = (self.code, self.chat) if kind is RouteKind.CODE else (self.chat, self.code)
        return next((table[name] for table in tables if name in table), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.chat, *self.code)))


def name_table(
    ids: Sequence[str],
    config: ServerConfig,
    companions: Mapping[str, str] | None = None,
    served_names: Mapping[str, str] | None = None,
) -> NameTable:
    """The first model is the default: the aliases of `config` select it. `served_names` override every other name."""
    companions, served_names = companions or {}, served_names or {}
    default = ids[0]
    chat = {default: default, **dict.fromkeys(config.chat_aliases, default), **{each: each for each in ids}}
    code = {default: default, **dict.fromkeys(config.code_aliases, default), **{each: each for each in ids}}
    for alias, target in served_names.items():
        if target not in ids:
            raise InvalidRequest(f"--served-name {alias}={target}: {target} is not served here", param="served_name")
        chat[alias] = code[alias] = target
    return NameTable(chat, {name: companions.get(target, target) for name, target in code.items()})


def parse_served_names(entries: Iterable[str]) -> dict[str, str]:
    """`NAME=MODEL` entries as a mapping."""
    names: dict[str, str] = {}
    for entry in entries:
        name, equals, target = entry.partition("=")
        if not (name and equals and target) or len(name) > 256:
            raise InvalidRequest(f"--served-name takes NAME=MODEL, not {entry!r}", param="served_name")
        if names.setdefault(name, target) != target:
            raise InvalidRequest(f"--served-name gives {name} two models", param="served_name")
    return names


def known_info(engine: EngineClient) -> EngineInfo | None:
    """The facts of a model that is loaded or was loaded before; None before its first load."""
    try:
        return engine.info
    except EngineUnavailable:
        return None


# States as the model lists print them.
PRINTED_STATES = {
    EngineState.READY: "ready",
    EngineState.UNRESPONSIVE: "ready",
    EngineState.STARTING: "loading",
    EngineState.CLOSED: "loading",
    EngineState.UNLOADED: "unloaded",
}


CHAT_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
)
# Prefixes that routers put before a name and do not always remove.
PROVIDER_PREFIXES = ("inception/", "openai/")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One model of the lists."""

    card: ModelCard
    engine: EngineClient
    can_think: bool = True
    # Of an adapter: the id of its base model.
    parent: str | None = None

    def features(self) -> list[str]:
        """`reasoning` is listed only for a model whose prompt format has it."""
        return [name for name in self.card.features if self.can_think or name != "reasoning"]


class Directory:
    def __init__(self, table: NameTable, models: Mapping[str, ListedModel]) -> None:
        self._table = table
        self._models = models
        self._started_at = int(time.time())
        self.default = next(iter(models))
        self.chat_names = tuple(table.chat)
        self.code_names = tuple(table.code)
        self.names = table.names

    def find(self, name: str, kind: RouteKind) -> str:
        """The id of the model that `name` selects; an empty name selects the default. Raises ModelNotFound."""
        found = self._table.model_of(self._bare(name) or self.default, kind)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise ModelNotFound(f"model `{name[:100]}` not found{hint}; {self._served()}", param="model")

    def _served(self) -> str:
        known = ", ".join(f"`{each}`" for each in self._models)
        others = ", ".join(name for name in self.names if name not in self._models)
        return f"this server has {known}" + (f" (also named {others})" if others else "")

    def check(self, name: str) -> None:
        """Raises ModelNotFound for an unknown name."""
        self.find(name, RouteKind.CHAT)

    def entry(self, name: str, kind: RouteKind = RouteKind.CHAT) -> ModelReply:
        return self.describe(name, self._models[self.find(name, kind)], is_chat=self._bare(name) in self.chat_names)

    def describe(self, name: str, model: ListedModel, *, is_chat: bool = True) -> ModelReply:
        """The entry of a model under this name, whether or not the name is in the table."""
        card, info = model.card, known_info(model.engine)
        reply: ModelReply = {
            "id": name,
            "object": "model",
            "created": card.created or self._started_at,
            "owned_by": card.owned_by,
            "name": card.name,
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "pricing": _pricing(card.pricing),
            "supported_sampling_parameters": list(CHAT_SAMPLING),
            "supported_features": model.features() if is_chat else [],
            "description": card.description,
            "openrouter": {"slug": f"{card.owned_by}/{card.id}"},
            "datacenters": [{"country_code": card.country_code}] if card.country_code else [],
            "quicksilver": {"model": card.id, "state": PRINTED_STATES[model.engine.health().state]},
        }
        if model.parent is not None:
            reply["parent"] = model.parent
        calibration = calibration_of(card.id).reply
        if calibration is not None:
            reply["calibration"] = calibration
        if info is not None:
            reply["context_length"] = info.context_len
            reply["max_output_length"] = min(card.max_output_len, info.context_len)
        return reply

    def listing(self, names: Iterable[str], kind: RouteKind = RouteKind.CHAT) -> ModelList:
        return {"object": "list", "data": [self.entry(name, kind) for name in names]}

    @staticmethod
    def _bare(name: str) -> str:
        return next((name.removeprefix(p) for p in PROVIDER_PREFIXES if name.startswith(p)), name)


def _pricing(pricing: Pricing) -> PricingReply:
    return {
        "prompt": pricing.prompt,
        "completion": pricing.completion,
        "input_cache_reads": pricing.input_cache_reads,
        "input_cache_writes": pricing.input_cache_writes,
    }
