"""Services: the objects that requests use, built by the caller and injected once.

A Services object is bound to one model. `for_model` returns that of another model of the same server; the two share
everything that does not depend on the model. There is no module-level state: two applications in one process share
nothing but what their Services share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request

from quicksilver.accounts.keys import load_pepper
from quicksilver.constrain.source import ToolTags
from quicksilver.core import EngineClient
from quicksilver.errors import ModelNotFound
from quicksilver.server.adapters import AdapterEngine, AdapterSource, ServedAdapter
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.encoding.prompt_encoder import PromptEncoder
from quicksilver.server.encoding.update_merger import UpdateMerger
from quicksilver.server.endpoints.feedback.settings import CaptureSettings
from quicksilver.server.endpoints.feedback.store import FeedbackLog
from quicksilver.server.endpoints.messages.signing import Signer
from quicksilver.server.engine_probe import EngineProbe
from quicksilver.server.generation.grammar import GrammarPool
from quicksilver.server.generation.in_flight import InFlightQueue
from quicksilver.server.generation.tool_tags import read_tool_tags
from quicksilver.server.http.request_record import Metrics, OpenRequests
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.models import (
    Directory,
    ListedModel,
    NameTable,
    RouteKind,
    ServedModel,
    is_loaded,
    load,
    name_table,
)
from quicksilver.server.storage import Storage
from quicksilver.server.tuned_adapters import TunedAdapters
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    # Imports the database library, which takes long, and most servers run without accounts.
    from quicksilver.accounts.service import Accounts

    # Needs an optional extra.
    from quicksilver.server.http.tracing import Tracing

# Adapters whose Services are kept; each has an encoder of prompts.
MAX_ADAPTER_SERVICES = 256


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
        return self.by_model[self.directory.find(name, kind)]

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
        return is_loaded(self.engine)

    async def load(self) -> None:
        """Returns when this model is loaded. Raises EngineUnavailable if that takes longer than a request may wait."""
        await load(self.engine)

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

    @cached_property
    def directory(self) -> Directory:
        if self.root is not None:
            return self.root.directory
        listed = {name: each.listed for name, each in self.by_model.items()}
        return Directory(self.names or name_table(tuple(listed), self.config), listed)

    @property
    def listed(self) -> ListedModel:
        return ListedModel(self.config.card, self.engine, self.template.can_think, self.base_id)

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
