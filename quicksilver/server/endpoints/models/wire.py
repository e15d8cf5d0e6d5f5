"""Replies of the model lists: the fields of Mercury and of OpenAI in one entry."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class PricingReply(TypedDict):
    prompt: str
    completion: str
    input_cache_reads: str
    input_cache_writes: str


class OpenRouterReply(TypedDict):
    slug: str


class DataCenterReply(TypedDict):
    country_code: str


class ModelReply(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    name: str
    input_modalities: list[Literal["text"]]
    output_modalities: list[Literal["text"]]
    context_length: int
    max_output_length: int
    pricing: PricingReply
    supported_sampling_parameters: list[str]
    supported_features: list[str]
    description: str
    openrouter: OpenRouterReply
    datacenters: list[DataCenterReply]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelReply]
