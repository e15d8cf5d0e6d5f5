"""Model entries in the form that Codex reads: the array `models` beside OpenAI's `data` in `/v1/models`.

Codex requests `/v1/models?client_version=…` from a provider with command authentication, and reads the same JSON from
the file that its setting `model_catalog_json` names. Fields that it requires are always present. Without an entry for a
model it assumes a context of 272,000 tokens and sends its own instructions, which are several thousand tokens long.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from quicksilver.server.endpoints.models.wire import ModelList, ModelReply

# The most tokens of one tool result that Codex keeps, and the share of the context that it may fill.
MAX_RESULT_TOKENS, RESULT_SHARE = 10_000, 4
# Context that is listed for a model that has not been loaded yet, so that its own is unknown.
UNKNOWN_CONTEXT = 8192
EFFORTS = {"low": "Short reasoning", "medium": "Balanced reasoning", "high": "Long reasoning"}
INSTRUCTIONS = """\
You are a coding agent in a terminal. You work in the user's current directory and change its files with tools.
- Do the task with tool calls. Do not only describe what to do, and do not ask questions.
- Read a file before you change it. Change only what the task requires.
- Create or replace a file with one shell command, for example: cat > name.py <<'END' ... END
- Run the result once if that is possible. If a command fails, read its output and correct the cause.
- When the task is done, answer with one or two sentences and no tool call."""


class ReasoningLevel(TypedDict):
    effort: str
    description: str


class TruncationPolicy(TypedDict):
    mode: Literal["tokens"]
    limit: int


class CodexModel(TypedDict):
    """One model of the list as Codex reads it."""

    slug: str
    display_name: str
    description: str
    supported_reasoning_levels: list[ReasoningLevel]
    shell_type: Literal["default"]
    visibility: Literal["list"]
    supported_in_api: bool
    # Models with lower numbers come first.
    priority: int
    base_instructions: str
    supports_reasoning_summaries: bool
    support_verbosity: bool
    truncation_policy: TruncationPolicy
    supports_parallel_tool_calls: bool
    # Absent until the model is loaded for the first time.
    context_window: NotRequired[int]
    experimental_supported_tools: list[str]
    input_modalities: list[Literal["text"]]


class FullModelList(ModelList):
    """`/v1/models`: OpenAI's list, and the models that chat routes answer to in the form of Codex."""

    models: list[CodexModel]


def with_codex_models(listed: ModelList, chat_names: Collection[str]) -> FullModelList:
    chat = [model for model in listed["data"] if model["id"] in chat_names]
    return {**listed, "models": [codex_model(model, priority) for priority, model in enumerate(chat)]}


def codex_model(model: ModelReply, priority: int) -> CodexModel:
    can_think = "reasoning" in model["supported_features"]
    limit = min(MAX_RESULT_TOKENS, model.get("context_length", UNKNOWN_CONTEXT) // RESULT_SHARE)
    entry: CodexModel = {
        "slug": model["id"],
        "display_name": model["name"],
        "description": model["description"],
        "supported_reasoning_levels": [
            {"effort": effort, "description": text} for effort, text in EFFORTS.items() if can_think
        ],
        "shell_type": "default",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "base_instructions": INSTRUCTIONS,
        "supports_reasoning_summaries": can_think,
        "support_verbosity": False,
        "truncation_policy": {"mode": "tokens", "limit": limit},
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }
    if "context_length" in model:
        entry["context_window"] = model["context_length"]
    return entry
