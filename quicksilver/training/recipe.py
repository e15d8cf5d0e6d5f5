"""A recipe: one TOML file that defines how an adapter is made, parsed into frozen records.

Standard library only. Unknown keys, wrong types and impossible values are refused with the path of the key, so that a
run never starts from a misread recipe. The hash of the recipe is in the metadata of its adapters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quicksilver.errors import InvalidRequest

Stage = Literal["prepare", "distil", "skill", "generate", "propose", "kto", "pairs", "canvas", "evaluate", "export"]
STAGES: tuple[str, ...] = typing.get_args(Stage)


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen base model."""

    # GGUF file, safetensors folder, catalogue or hub name; empty builds a tiny random model (the smoke recipe).
    weights: str = ""
    # Skill adapter merged before anything else runs; empty: that of the catalogue model, if it has one.
    skill: str = ""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


@dataclass(frozen=True, slots=True)
class Data:
    """What `prepare` writes."""

    # Folder of `.jsonl.xz` files; empty makes a generated corpus (the smoke recipe).
    source: str = ""
    # Evaluation pack that training rows are checked against.
    evals: str = ""
    # Tokenizer file; empty takes it from the base weights.
    tokenizer: str = ""
    # Your own files, by any name: JSON lines of chats, infilling, edits, pairs or texts. Not with `rows`.
    files: Mapping[str, str] = field(default_factory=dict)
    row_len: int = 1024
    seed: int = 17
    # Processes that share the reading of one source; each takes the items whose names it is assigned by hash.
    parts: int = 1
    # Documents per source; sources not named are left out, 0 takes all there are.
    rows: Mapping[str, int] = field(default_factory=dict)
    # Questions per source for the teacher of the distil stage, besides those made by rule.
    asks: Mapping[str, int] = field(default_factory=dict)
    # On-policy prompts per domain; 0 takes all there are.
    prompts: Mapping[str, int] = field(default_factory=dict)
    # Longer prompts are not answered on-policy: reading them would take most of the time.
    max_prompt_len: int = 600
    # Next edits for the propose stage, of commit records that no training row comes from.
    proposals: int = 0
    # Documents per source that a run with the same seed has used; they are left out.
    skip: Mapping[str, int] = field(default_factory=dict)
    # Held-out prompts per domain.
    eval_prompts: int = 64
    # Whether spare tokens of the tokenizer take the roles it lacks; needs a skill adapter that learns them.
    reserves_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Optim:
    """AdamW, its schedule, and when to stop: at `max_steps` or `max_seconds`, whichever comes first (0: no bound)."""

    lr: float = 8e-4
    warmup_steps: int = 40
    schedule: Literal["linear", "cosine"] = "linear"
    max_steps: int = 0
    max_seconds: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip: float = 1.0
    # 0 keeps no average; the average is what is exported when there is one.
    ema_decay: float = 0.0
    log_every: int = 20
    sample_every: int = 0
    checkpoint_every: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Skill:
    """The skill adapter: a LoRA on all rows, with loss on answers only."""

    rank: int = 32
    rows_per_batch: int = 64
    # Loss weight of plain text, of the code around a gap, and of what an edit copies.
    text_weight: float = 1.0
    # How many times the base's own answers of the generate stage are learned in one pass over the data.
    rehearsals: int = 0
    head_chunk: int = 8192
    # Skill adapter to start from; empty: that of the catalogue model that is the base, else nothing.
    warm_start: str = ""
    optim: Optim = field(default_factory=Optim)


@dataclass(frozen=True, slots=True)
class Generate:
    """On-policy text: answers that the frozen model samples autoregressively."""

    batch: int = 2048
    row_len: int = 1024
    max_seconds: float = 120.0
    max_rounds: int = 0
    max_new_tokens: int = 256
    greedy_share: float = 0.5
    temperature: float = 0.6
    self_play_temperature: float = 0.9
    seed: int = 3
    # Number of prompts that an earlier run with this seed answered: they come last.
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Distil:
    """Answers of a larger model to our questions, added to the skill rows."""

    # Its weights: GGUF file or safetensors folder.
    teacher: str = ""
    questions: int = 20000
    generate: Generate = field(default_factory=Generate)


@dataclass(frozen=True, slots=True)
class Propose:
    """Greedy answers of the skilled model to next-edit requests."""

    batch: int = 512
    # Tokens of a prompt and its answer.
    num_slots: int = 2048
    # Tokens that an answer may have beyond one and a half times the region.
    spare_tokens: int = 120
    max_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Kto:
    """Preference training of the skill adapter on judged proposals."""

    rank: int = 32
    beta: float = 0.1
    # `apo_zero_unpaired` drops the divergence.
    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    row_len: int = 2048
    rows_per_batch: int = 16
    # Rows of prompts paired with another proposal, for the divergence.
    kl_rows: int = 4
    # Accepted proposals beyond this many per rejected one are left out; 0 takes all.
    accepted_per_rejected: float = 0.0
    head_chunk: int = 4096
    # Skill adapter to start from, which is the reference; empty takes this run's skill checkpoint.
    warm_start: str = ""
    optim: Optim = field(default_factory=Optim)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference training of the skill adapter on pairs of the expected answer and a wrong proposal."""

    rank: int = 32
    beta: float = 0.3
    # Weight of the mean cross-entropy of the expected answers.
    expected_weight: float = 1.0
    row_len: int = 2048
    rows_per_batch: int = 16
    # At most this many pairs; 0 takes all.
    max_pairs: int = 0
    head_chunk: int = 4096
    # Skill adapter to start from, which is the reference; empty takes this run's skill checkpoint.
    warm_start: str = ""
    optim: Optim = field(default_factory=Optim)


@dataclass(frozen=True, slots=True)
class Canvas:
    """The canvas adapter: a LoRA that applies to canvas rows only."""

    rank: int = 64
    # Each step draws one of these lengths, so a length that is listed twice comes twice as often.
    canvas_lens: tuple[int, ...] = (16,)
    # Canvas rows per packed row: canvases = canvas_rows // canvas_len.
    canvas_rows: int = 1024
    # Number of learned mask embeddings.
    max_canvas_len: int = 32
    # A multiple of the length of generated rows, which are joined to rows of this length; 0 keeps their length.
    row_len: int = 0
    # Share of the rows that hold documents with their own answers, because their prompts are too long to generate.
    written_share: float = 0.0
    rows_per_batch: int = 16
    index_decay: float = 8.0
    teacher_temperature: float = 0.6
    revealed_share: float = 0.0
    head_chunk: int = 4096
    # Canvas adapter to start from; empty starts from nothing.
    warm_start: str = ""
    optim: Optim = field(default_factory=Optim)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Held-out measures after a run."""

    canvas_lens: tuple[int, ...] = (8, 16)
    thresholds: tuple[float, ...] = (0.9,)
    max_new_tokens: int = 192
    batch: int = 512


@dataclass(frozen=True, slots=True)
class Export:
    """How the finished adapter is rounded."""

    bits: Literal[4, 8, 16] = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything a run depends on, besides the data itself."""

    name: str
    stages: tuple[Stage, ...]
    description: str = ""
    base: Base = field(default_factory=Base)
    data: Data = field(default_factory=Data)
    distil: Distil = field(default_factory=Distil)
    skill: Skill = field(default_factory=Skill)
    generate: Generate = field(default_factory=Generate)
    propose: Propose = field(default_factory=Propose)
    kto: Kto = field(default_factory=Kto)
    pairs: Pairs = field(default_factory=Pairs)
    canvas: Canvas = field(default_factory=Canvas)
    evaluate: Evaluate = field(default_factory=Evaluate)
    export: Export = field(default_factory=Export)
    # Hash of the file's bytes; set by `load_recipe`.
    sha256: str = ""
    # What the command line changed; set by `load_recipe`.
    overrides: tuple[str, ...] = ()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Parse a recipe; `overrides` are `section.key=value` with TOML values."""
    try:
        raw = path.read_bytes()
        table = tomllib.loads(raw.decode())
        for text in overrides:
            _override(table, text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"recipe {path.name}: {error}") from error
    marks = {"sha256": hashlib.sha256(raw).hexdigest(), "overrides": list(overrides)}
    recipe: Recipe = _build(Recipe, table | marks, "recipe")
    if not recipe.stages:
        raise InvalidRequest(f"recipe.stages: name at least one of {', '.join(STAGES)}")
    return recipe


def _override(table: dict[str, Any], text: str) -> None:
    key, has_value, value = text.partition("=")
    *sections, last = key.strip().split(".")
    if not has_value or not last:
        raise InvalidRequest(f"override {text!r}: write section.key=value")
    for section in sections:
        table = table.setdefault(section, {})
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f'override {text!r}: write a TOML value, text as key="text" ({error})') from error


def _build(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        raise InvalidRequest(f"{where}.{unknown[0]}: unknown key; known: {', '.join(sorted(hints))}")
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in table and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidRequest(f"{where}.{missing[0]}: missing")
    return kind(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in table.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _build(hint, value, where)
    if origin is Literal and value in args:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _value(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = f"one of {args}" if origin is Literal else getattr(hint, "__name__", str(hint))
    raise InvalidRequest(f"{where}: {value!r} is not {wanted}")
