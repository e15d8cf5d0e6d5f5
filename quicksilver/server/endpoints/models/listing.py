"""The entries of the model lists: what a reply says of each model."""

from __future__ import annotations

from collections.abc import Iterable

from quicksilver.core import EngineState
from quicksilver.server.config import Pricing
from quicksilver.server.endpoints.decisions.calibration import calibration_of
from quicksilver.server.endpoints.models.wire import ModelList, ModelReply, PricingReply
from quicksilver.server.services import RouteKind, Services, bare_name

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


def features_of(services: Services) -> list[str]:
    """`reasoning` is listed only for a model whose prompt format has it."""
    features = services.config.card.features
    return [name for name in features if services.template.can_think or name != "reasoning"]


def listing(services: Services, names: Iterable[str], kind: RouteKind = RouteKind.CHAT) -> ModelList:
    return {"object": "list", "data": [entry(services, name, kind) for name in names]}


def entry(services: Services, name: str, kind: RouteKind = RouteKind.CHAT) -> ModelReply:
    """Raises ModelNotFound for an unknown name."""
    is_chat = bare_name(name) in services.model_names.chat
    return describe(name, services.for_model(name, kind), is_chat=is_chat)


def describe(name: str, services: Services, *, is_chat: bool = True) -> ModelReply:
    """The entry of the model of `services` under this name, whether or not the name is in the table."""
    card, info = services.config.card, services.known_info
    reply: ModelReply = {
        "id": name,
        "object": "model",
        "created": card.created or services.started_at,
        "owned_by": card.owned_by,
        "name": card.name,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "pricing": _pricing(card.pricing),
        "supported_sampling_parameters": list(CHAT_SAMPLING),
        "supported_features": features_of(services) if is_chat else [],
        "description": card.description,
        "openrouter": {"slug": f"{card.owned_by}/{card.id}"},
        "datacenters": [{"country_code": card.country_code}] if card.country_code else [],
        "quicksilver": {"model": card.id, "state": PRINTED_STATES[services.engine.health().state]},
    }
    if services.base_id is not None:
        reply["parent"] = services.base_id
    calibration = calibration_of(card.id).reply
    if calibration is not None:
        reply["calibration"] = calibration
    if info is not None:
        reply["context_length"] = info.context_len
        reply["max_output_length"] = min(card.max_output_len, info.context_len)
    return reply


def _pricing(pricing: Pricing) -> PricingReply:
    return {
        "prompt": pricing.prompt,
        "completion": pricing.completion,
        "input_cache_reads": pricing.input_cache_reads,
        "input_cache_writes": pricing.input_cache_writes,
    }
