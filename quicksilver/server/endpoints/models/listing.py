"""The entries of the model lists: what a reply says of each model, in OpenAI's form and in Anthropic's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

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


def is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def anthropic_model(model: ModelReply) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["name"],
        "created_at": datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        # Null until the model is loaded for the first time.
        "max_input_tokens": model.get("context_length"),
        "max_tokens": model.get("max_output_length"),
    }


def anthropic_models(models: Sequence[ModelReply]) -> dict[str, Any]:
    data = [anthropic_model(model) for model in models]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
