"""affinity_keys: hashes of the prompt in an HTTP body, by which `affinity.rank` chooses a replica.

The first key is the hash of the leading text: tools, system prompt, messages, in the order in which a chat template
writes them. The second one is the hash of the conversation up to its first user message; it keeps a conversation on one
replica if the replica of its prefix is overloaded. The bodies of all APIs of the server are read; a body that is not
understood has no keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from quicksilver.cluster.routing.affinity import PREFIX_PAGES, digest, prefix_key

# Characters of a page of 16 tokens, at four characters a token.
PAGE_BYTES = 64
# A longer body is identified by its leading bytes, without being parsed.
MAX_PARSED_BYTES = 2**20
MAX_PREFIX_BYTES = PREFIX_PAGES[0] * PAGE_BYTES
# Longest beginning of a conversation that is hashed.
MAX_CONVERSATION_BYTES = 64 * 2**10
# Fields that precede the messages in a prompt, and fields that hold the messages or the text.
LEADING_FIELDS, TEXT_FIELDS = ("tools", "system", "instructions"), ("messages", "input", "prompt", "input_prefix")
LEADING_ROLES = ("system", "developer")


def affinity_keys(salt: bytes, body: bytes) -> list[bytes]:
    """At most two keys, the stronger first. `salt` separates callers that share no prefix cache."""
    if len(body) > MAX_PARSED_BYTES:
        return [digest(salt, body[:MAX_PREFIX_BYTES])]
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(fields, dict):
        return []
    prefix = _joined(_pieces(fields), MAX_PREFIX_BYTES)
    conversation = _joined(_beginning(fields), MAX_CONVERSATION_BYTES)
    keys = [prefix_key(salt, prefix, PAGE_BYTES), digest(salt, conversation) if conversation else None]
    return [key for key in keys if key is not None]


def _joined(pieces: Iterator[bytes], limit: int) -> bytes:
    joined = bytearray()
    for piece in pieces:
        joined += piece[: limit - len(joined)]
        if len(joined) >= limit:
            break
    return bytes(joined)


def _pieces(fields: Mapping[str, Any]) -> Iterator[bytes]:
    for name in (*LEADING_FIELDS, *TEXT_FIELDS):
        for item in _items(fields.get(name)):
            yield _text(item)


def _beginning(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Everything up to the first message of a user; of a body without messages nothing."""
    for name in LEADING_FIELDS:
        for item in _items(fields.get(name)):
            yield _text(item)
    for name in ("messages", "input"):
        messages = fields.get(name)
        for item in messages if isinstance(messages, list) else ():
            yield _text(item)
            if not (isinstance(item, dict) and item.get("role") in LEADING_ROLES):
                return


def _items(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _text(item: Any) -> bytes:
    """A message as its role and text, a string as it is, everything else as JSON."""
    if isinstance(item, str):
        return item.encode(errors="replace")
    if isinstance(item, dict) and isinstance(item.get("content"), str):
        return f"\n{item.get('role', '')}\n{item['content']}".encode(errors="replace")
    return orjson.dumps(item)
