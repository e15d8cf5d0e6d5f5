"""Replies of the model lists: the fields of Mercury and of OpenAI in one entry."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from quicksilver.server.endpoints.decisions.calibration import CalibrationReply


class PricingReply(TypedDict):
    prompt: str
    completion: str
    input_cache_reads: str
    input_cache_writes: str


class OpenRouterReply(TypedDict):
    slug: str


class DataCenterReply(TypedDict):
    country_code: str


class ServedReply(TypedDict):
    """Extension: the model that the name selects, and whether it is `ready`, `loading` or `unloaded`. The next request
    loads an unloaded model."""

    model: str
    state: str


class ModelReply(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    name: str
    input_modalities: list[Literal["text"]]
    output_modalities: list[Literal["text"]]
    # Unknown until the model is loaded for the first time.
    context_length: NotRequired[int]
    max_output_length: NotRequired[int]
    pricing: PricingReply
    supported_sampling_parameters: list[str]
    supported_features: list[str]
    description: str
    openrouter: OpenRouterReply
    datacenters: list[DataCenterReply]
    # Of the probabilities that `/v1/decisions` returns.
    calibration: NotRequired[CalibrationReply]
    quicksilver: ServedReply
    # Of an adapter: the id of its base model.
    parent: NotRequired[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelReply]
