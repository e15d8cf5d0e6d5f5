"""Model lists in Anthropic's form, for clients that send `anthropic-version`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from quicksilver.server.endpoints.models.wire import ModelReply


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
