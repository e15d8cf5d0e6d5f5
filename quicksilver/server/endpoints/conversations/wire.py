"""Bodies and replies of `/v1/conversations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.endpoints.responses.wire import InputItem
from quicksilver.server.http.fields import Metadata, Wire

# Most items that one request adds.
MAX_NEW_ITEMS = 20

NewItems = Annotated[list[InputItem], Field(max_length=MAX_NEW_ITEMS)]


class ConversationBody(Wire):
    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationUpdateBody(Wire):
    metadata: Metadata | None = None


class NewItemsBody(Wire):
    items: NewItems


class ConversationReply(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ItemReply(TypedDict):
    """The other keys depend on the type."""

    id: str
    type: str
