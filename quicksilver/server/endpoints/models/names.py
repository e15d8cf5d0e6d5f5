"""Names of the served model and their entries in the model lists.

One model is served; every other name is an alias. A reply contains the model name that the request used.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable

from quicksilver.core import EngineInfo
from quicksilver.errors import ModelNotFound
from quicksilver.server.config import Pricing, ServerConfig
from quicksilver.server.endpoints.models.wire import ModelList, ModelReply, PricingReply

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


class Directory:
    def __init__(self, config: ServerConfig, info: EngineInfo) -> None:
        self._config = config
        self._info = info
        self._created = config.card.created or int(time.time())
        own = (config.card.id, info.model)
        self.chat_names = tuple(dict.fromkeys((*own, *config.chat_aliases)))
        self.code_names = tuple(dict.fromkeys((*own, *config.code_aliases)))
        self.names = tuple(dict.fromkeys((*self.chat_names, *self.code_names)))

    def check(self, name: str) -> None:
        """Raises ModelNotFound for an unknown name."""
        if self._bare(name) in self.names:
            return
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise ModelNotFound(f"model `{name[:100]}` not found{hint}", param="model")

    def entry(self, name: str) -> ModelReply:
        self.check(name)
        card = self._config.card
        is_chat = self._bare(name) in self.chat_names
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": card.owned_by,
            "name": card.name,
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "context_length": self._info.context_len,
            "max_output_length": min(card.max_output_len, self._info.context_len),
            "pricing": _pricing(card.pricing),
            "supported_sampling_parameters": list(CHAT_SAMPLING),
            "supported_features": list(card.features) if is_chat else [],
            "description": card.description,
            "openrouter": {"slug": f"{card.owned_by}/{card.id}"},
            "datacenters": [{"country_code": card.country_code}] if card.country_code else [],
        }

    def listing(self, names: Iterable[str]) -> ModelList:
        return {"object": "list", "data": [self.entry(name) for name in names]}

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
