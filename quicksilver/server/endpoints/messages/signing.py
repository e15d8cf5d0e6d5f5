"""Signer: signatures of thinking blocks, so that only thinking that this server wrote is put into a prompt."""

from __future__ import annotations

import hmac
from collections.abc import Callable

# Purpose, message -> keyed digest in hexadecimal.
Digest = Callable[[str, bytes], str]

PURPOSE = "thinking-block"


class Signer:
    def __init__(self, digest: Digest) -> None:
        self._digest = digest

    def sign(self, thinking: str) -> str:
        return self._digest(PURPOSE, thinking.encode("utf-8", "surrogatepass"))

    def is_valid(self, thinking: str, signature: str) -> bool:
        return signature.isascii() and hmac.compare_digest(self.sign(thinking), signature)
