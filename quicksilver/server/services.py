"""What a request uses: the model that it names, and the objects of the server, built by the caller and injected once.

A Services object is bound to one model. `for_model` returns that of another model of the same server; the two share
everything that does not depend on the model. There is no module-level state: two applications in one process share
nothing but what their Services share.

A name selects one model for chat routes and one for code routes. Both are the same model, except where the catalogue
names a companion: a second model that answers the code routes in place of the first. Every name that is not the id of a
model is an alias. A reply contains the model name that the request used.
"""

from __future__ import annotations

import difflib
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request

from quicksilver.accounts.keys import load_pepper
from quicksilver.constrain.source import ToolTags
from quicksilver.core import EngineClient, EngineInfo
from quicksilver.errors import EngineUnavailable, InvalidRequest, ModelNotFound
from quicksilver.server.adapters import AdapterEngine, AdapterSource, LoadableEngine, ServedAdapter, TunedAdapters
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.encoding.pool import EncoderPool, UpdateMerger
from quicksilver.server.encoding.prompt_encoder import PromptEncoder
from quicksilver.server.endpoints.feedback.store import CaptureSettings, FeedbackLog
from quicksilver.server.endpoints.messages.signing import Signer
from quicksilver.server.engine_probe import EngineProbe
from quicksilver.server.generation.grammar import GrammarPool, read_tool_tags
from quicksilver.server.generation.in_flight import InFlightQueue
from quicksilver.server.http.request_record import Metrics, OpenRequests
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.storage import Storage
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    # Imports the database library, which takes long, and most servers run without accounts.
    from quicksilver.accounts.service import Accounts

    # Needs an optional extra.
    from quicksilver.server.http.tracing import Tracing

# Adapters whose Services are kept; each has an encoder of prompts.
MAX_ADAPTER_SERVICES = 256
# Prefixes that routers put before a name and do not always remove.
PROVIDER_PREFIXES = ("inception/", "openai/")


class RouteKind(StrEnum):
    """`CODE`: fill-in-the-middle, next edit and apply edit. `CHAT`: every other route that names a model."""

    CHAT = "chat"
    CODE = "code"


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

    @property
    def default(self) -> str:
        return next(iter(self.chat))

    def find(self, name: str, kind: RouteKind) -> str:
        """The id of the model that `name` selects; an empty name selects the default. Raises ModelNotFound."""
        found = self.model_of(bare_name(name) or self.default, kind)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise ModelNotFound(f"model `{name[:100]}` not found{hint}; {self._served()}", param="model")

    def _served(self) -> str:
        models = dict.fromkeys((*self.chat.values(), *self.code.values()))
        known = ", ".join(f"`{each}`" for each in models)
        others = ", ".join(name for name in self.names if name not in models)
        return f"this server has {known}" + (f" (also named {others})" if others else "")


def bare_name(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in PROVIDER_PREFIXES if name.startswith(prefix)), name)


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


@dataclass(frozen=True)
class Services:
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    grammars: GrammarPool | None = None
    accounts: Accounts | None = None
    config: ServerConfig = field(default_factory=ServerConfig)
    # Without it every prompt is encoded in this process.
    encoders: EncoderPool | None = None
    open_requests: OpenRequests = field(default_factory=OpenRequests)
    # Where the API processes of a supervisor write their counts; None in the API process itself.
    metrics_folder: Path | None = None
    # Models beside this one, by id.
    others: Mapping[str, ServedModel] = field(default_factory=dict)
    # Without it the aliases of `config` select this model.
    names: NameTable | None = None
    # Without it `auto` is no model.
    hybrid: Hybrid | None = None
    # None: requests are not traced.
    tracing: Tracing | None = None
    # Of a model that is not the default: the Services of the default model, which hold what all models share.
    root: Services | None = None
    # Adapters that come and go while the server runs; None: the tuned models of each project.
    adapters: AdapterSource | None = None
    # Of an adapter: the id of its base model.
    base_id: str | None = None
    # Seconds since the epoch.
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_id(self) -> str:
        return self.config.card.id

    @cached_property
    def by_model(self) -> dict[str, Services]:
        """The Services of every model, the default first."""
        if self.root is not None:
            return self.root.by_model
        return {self.model_id: self, **{name: self._bind(other) for name, other in self.others.items()}}

    def for_model(self, name: str, kind: RouteKind) -> Services:
        """The Services of the model that `name` selects; an empty name selects the default. Raises ModelNotFound."""
        return self.by_model[self.model_names.find(name, kind)]

    async def for_tenant(self, name: str, kind: RouteKind, tenant: str) -> Services:
        """As `for_model`, with the adapters of this tenant."""
        try:
            return self.for_model(name, kind)
        except ModelNotFound:
            found = await self.adapter_source.find(name, tenant)
            if found is None:
                raise
            return self.for_adapter(found)

    def for_adapter(self, served: ServedAdapter) -> Services:
        """The Services of an adapter of the source; those of the last used adapters are kept."""
        if self.root is not None:
            return self.root.for_adapter(served)
        if served.base not in self.by_model:
            raise ModelNotFound(
                f"model `{served.name[:100]}` belongs to {served.base}, which is not served here", param="model"
            )
        key = (served.name, served.adapter.id)
        if key not in self._of_adapters:
            self._of_adapters[key] = self.by_model[served.base]._with_adapter(served)
            if len(self._of_adapters) > MAX_ADAPTER_SERVICES:
                self._of_adapters.popitem(last=False)
        self._of_adapters.move_to_end(key)
        return self._of_adapters[key]

    @cached_property
    def _of_adapters(self) -> OrderedDict[tuple[str, str], Services]:
        return OrderedDict()

    def _with_adapter(self, served: ServedAdapter) -> Services:
        card = replace(
            self.config.card, id=served.name, name=served.name, created=served.created, owned_by=served.owned_by
        )
        return replace(
            self,
            engine=AdapterEngine(served.name, self.engine, served.adapter),
            config=replace(self.config, card=card),
            others={},
            root=self.root or self,
            base_id=self.model_id,
        )

    @property
    def metrics_id(self) -> str:
        """The `model` label of metrics. Adapters that come and go are counted with their base."""
        return self.model_id if self.model_id in self.by_model else self.base_id or self.model_id

    @property
    def is_loaded(self) -> bool:
        """False for a model that `load` has to wait for."""
        return not isinstance(self.engine, LoadableEngine) or self.engine.is_loaded

    async def load(self) -> None:
        """Returns when this model is loaded. Raises EngineUnavailable if that takes longer than a request may wait."""
        if isinstance(self.engine, LoadableEngine):
            await self.engine.load()

    def _bind(self, model: ServedModel) -> Services:
        return replace(
            self,
            engine=model.engine,
            tokenizer=model.tokenizer,
            template=model.template,
            encoders=model.encoders,
            config=replace(self.config, card=model.card),
            others={},
            root=self,
            base_id=model.base,
        )

    @cached_property
    def metrics(self) -> Metrics:
        return self.root.metrics if self.root else Metrics(self.metrics_folder)

    @cached_property
    def engine_probe(self) -> EngineProbe:
        return EngineProbe(self.engine)

    @property
    def known_info(self) -> EngineInfo | None:
        """The facts of a model that is loaded or was loaded before; None before its first load."""
        try:
            return self.engine.info
        except EngineUnavailable:
            return None

    @cached_property
    def model_names(self) -> NameTable:
        if self.root is not None:
            return self.root.model_names
        return self.names or name_table(tuple(self.by_model), self.config)

    @cached_property
    def prompts(self) -> PromptEncoder:
        return PromptEncoder(self.tokenizer, self.template, self.engine.info.context_len, self.encoders)

    @cached_property
    def merger(self) -> UpdateMerger:
        return UpdateMerger(self.encoders)

    @cached_property
    def tool_tags(self) -> ToolTags:
        return read_tool_tags(self.template, self.tokenizer)

    @cached_property
    def signer(self) -> Signer:
        """Servers that share accounts share signatures; without accounts the key is a file of the home folder."""
        if self.root is not None:
            return self.root.signer
        if self.accounts is not None:
            return Signer(self.accounts.digest)
        self.config.home.mkdir(parents=True, exist_ok=True)
        return Signer(load_pepper(self.config.home / "signing.key").digest)

    @cached_property
    def storage(self) -> Storage:
        return self.root.storage if self.root else Storage(self.accounts, self.config)

    @cached_property
    def adapter_source(self) -> AdapterSource:
        if self.root is not None:
            return self.root.adapter_source
        return self.adapters or TunedAdapters(self.storage, self.config.home)

    @cached_property
    def in_flight(self) -> InFlightQueue:
        if self.root is not None:
            return self.root.in_flight
        return InFlightQueue(self.config.max_in_flight_waiting, self.config.in_flight_wait_s)

    @cached_property
    def capture_settings(self) -> CaptureSettings:
        return self.root.capture_settings if self.root else CaptureSettings(self.storage)

    @cached_property
    def feedback(self) -> FeedbackLog:
        if self.root is not None:
            return self.root.feedback
        is_shared = self.accounts is not None and self.storage.is_on
        return FeedbackLog(self.config.home, storage=self.storage if is_shared else None)


def services_of(request: Request) -> Services:
    """Those of the default model, which the application was built with."""
    services: Services = request.app.state.services
    return services
