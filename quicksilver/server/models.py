"""The models of one server, the names that select them, and the state of each.

A name selects one model for chat routes and one for code routes. Both are the same model, except where the catalogue
names a companion: a second model that answers the code routes in place of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from quicksilver.core import EngineClient, EngineInfo, EngineState
from quicksilver.errors import EngineUnavailable, InvalidRequest
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
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
