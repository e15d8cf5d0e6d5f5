"""Services: the objects that requests use, built by the caller and injected once.

There is no module-level state: two applications in one process share nothing but what their Services share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fastapi import Request

from quicksilver.constrain.source import ToolTags
from quicksilver.core import EngineClient
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.encoding.prompt_encoder import PromptEncoder
from quicksilver.server.endpoints.feedback.store import FeedbackLog
from quicksilver.server.endpoints.models.names import Directory
from quicksilver.server.engine_probe import EngineProbe
from quicksilver.server.generation.grammar import GrammarPool
from quicksilver.server.generation.tool_tags import read_tool_tags
from quicksilver.server.http.metrics import Metrics
from quicksilver.server.run import OpenRequests
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    # Imports the database library, which takes long, and most servers run without accounts.
    from quicksilver.accounts.service import Accounts


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

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics(self.open_requests)

    @cached_property
    def engine_probe(self) -> EngineProbe:
        return EngineProbe(self.engine)

    @cached_property
    def directory(self) -> Directory:
        return Directory(self.config, self.engine.info)

    @cached_property
    def prompts(self) -> PromptEncoder:
        return PromptEncoder(self.tokenizer, self.template, self.engine.info.context_len, self.encoders)

    @cached_property
    def tool_tags(self) -> ToolTags:
        return read_tool_tags(self.template, self.tokenizer)

    @cached_property
    def feedback(self) -> FeedbackLog:
        return FeedbackLog(self.config.home)


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services
