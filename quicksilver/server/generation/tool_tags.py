"""The tags and white space around a tool call, found by rendering two calls with the model's own template.

The grammar then requires calls in exactly the form of the model's training data.
"""

from __future__ import annotations

from quicksilver.constrain.source import Layout, ToolTags
from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer

# Tags of models without special tokens for them.
TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"

CALL = ToolCall("probe", '{"a": 1}', "call_1")
CONVERSATION = (Message("user", "hello"), Message("assistant", tool_calls=(CALL, CALL)))


def read_tool_tags(template: ChatTemplate, tokenizer: Tokenizer) -> ToolTags:
    roles = tokenizer.roles
    if roles.tool_open is None or roles.tool_close is None:
        return ToolTags(TOOL_OPEN, TOOL_CLOSE)
    try:
        ids = template.render(CONVERSATION, (Tool("probe"),), add_generation_prompt=False).ids
    except InvalidRequest:
        # Some templates refuse this conversation; their models get the plain form.
        ids = ()
    opens = [at for at, token_id in enumerate(ids) if token_id == roles.tool_open][-2:]
    closes = [at for at, token_id in enumerate(ids) if token_id == roles.tool_close][-2:]
    if len(opens) < 2 or len(closes) < 2 or not opens[0] < closes[0] < opens[1] < closes[1]:
        return ToolTags(roles.tool_open, roles.tool_close)
    inside = tokenizer.decode(ids[opens[1] + 1 : closes[1]])
    return ToolTags(
        roles.tool_open,
        roles.tool_close,
        padding=inside[: len(inside) - len(inside.lstrip())],
        between=tokenizer.decode(ids[closes[0] + 1 : opens[1]]),
        layout=Layout.SPACED if '": ' in inside else Layout.COMPACT,
    )
