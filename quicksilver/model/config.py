"""`ModelConfig`: the shape and options of a network, read from a Hugging Face config.json or from GGUF metadata.

Standard library only, so that a checkpoint can be described without importing torch. Values are checked here, once: a
`ModelConfig` that exists can be built. An option that would change the numbers and is not supported is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.errors import CheckpointRefused
from quicksilver.model.experts import MoeConfig
from quicksilver.model.families import Family, family_of_gguf, family_of_hf
from quicksilver.model.gemma_config import GemmaConfig

# Upper bounds of plausible values: a damaged or hostile config must not cause a huge allocation.
_MAX_DIM = 1 << 24
_MAX_LAYERS = 1024
_MAX_FACTOR = 1e6
_MAX_THETA = 1e12
_MAX_BLOCK_LEN = 4096
_SIZES = ("num_layers", "dim", "ffn_dim", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_len")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are rescaled for contexts longer than the trained one."""

    kind: Literal["linear", "yarn", "llama3"]
    factor: float
    original_context_len: int = 0  # context length of pre-training (yarn, llama3)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # scale of cos and sin (yarn); None derives it from `factor`
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        factors = (self.factor, self.beta_fast, self.beta_slow, self.low_freq_factor, self.attention_factor or 1.0)
        if not all(0 < factor < _MAX_FACTOR for factor in factors):
            raise CheckpointRefused(f"config: rope scaling factors {factors} are out of range")
        is_trained = self.kind == "linear" or 0 < self.original_context_len <= _MAX_DIM
        if not is_trained or not self.low_freq_factor < self.high_freq_factor < _MAX_FACTOR:
            raise CheckpointRefused("config: rope scaling without a trained context or a range of frequencies")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and options of a network. Built by `from_hf` or `from_gguf`; immutable."""

    family: str  # name of the `Family`
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False
    partial_rotary: float = 1.0  # share of each head's leading dimensions that is rotated
    moe: MoeConfig | None = None
    gemma: GemmaConfig | None = None  # layers of DiffusionGemma; None: those of Llama and Qwen
    query_scale_beta: float = 0.0  # queries at position p are scaled by 1 + beta * ln(1 + p // original context)
    dialect: Dialect = AUTOREGRESSIVE

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 < value <= _MAX_DIM:
                raise CheckpointRefused(f"config: {name} = {value!r} is not a positive size")
        if self.num_layers > _MAX_LAYERS:
            raise CheckpointRefused(f"config: {self.num_layers} layers are too many")
        mask_id, block_len = self.dialect.mask_id, self.dialect.block_len
        if not 0 <= (mask_id or 0) < self.vocab_size or not 0 <= block_len <= _MAX_BLOCK_LEN:
            raise CheckpointRefused(f"config: mask token {mask_id} or block length {block_len} is out of range")
        if self.gemma is not None:
            is_whole = len(self.gemma.is_full) == self.num_layers and self.num_heads % self.gemma.full_kv_heads == 0
            if not is_whole or self.moe is None or self.rope_scaling is not None:
                raise CheckpointRefused("config: layers, heads, experts or rope scaling of DiffusionGemma do not fit")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CheckpointRefused(
                f"config: {self.num_heads} heads over {self.num_kv_heads} KV heads of {self.head_dim} cannot be built"
            )
        if not 0 < self.partial_rotary <= 1 or self.rotary_dim % 2 or not self.rotary_dim:
            raise CheckpointRefused(f"config: {self.partial_rotary} of {self.head_dim} dimensions cannot be rotated")
        if not 1 < self.rope_theta < _MAX_THETA or not 0 < self.norm_eps < 1:
            raise CheckpointRefused(
                f"config: rope theta {self.rope_theta} or norm epsilon {self.norm_eps} out of range"
            )

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_params(self) -> int:
        """Number of weights; a tied head counts once."""
        tables = self.vocab_size * self.dim * (1 if self.tied_head else 2) + self.dim
        if self.gemma is not None and self.moe is not None:
            own = self.gemma.num_params(self.dim, self.ffn_dim, self.num_heads, self.head_dim, self.kv_dim)
            return own + self.num_layers * (self.moe.num_params(self.dim) + self.moe.num_experts) + tables
        attention = self.dim * (2 * self.q_dim + 2 * self.kv_dim)
        bias = (self.q_dim + 2 * self.kv_dim) if self.qkv_bias else 0
        norms = 2 * self.dim + (2 * self.head_dim if self.qk_norm else 0)
        layer = attention + bias + norms
        num_sparse = max(self.num_layers - self.moe.num_dense, 0) if self.moe is not None else 0
        dense = 3 * self.dim * self.ffn_dim * (self.num_layers - num_sparse)
        sparse = num_sparse * self.moe.num_params(self.dim) if self.moe is not None else 0
        return self.num_layers * layer + dense + sparse + tables

    @property
    def is_plain(self) -> bool:
        """Whether the layers are those of Llama and Qwen: dense, with a full rotation and unscaled queries."""
        return self.moe is None and self.gemma is None and self.partial_rotary == 1 and not self.query_scale_beta

    @property
    def fits_cuda_kernels(self) -> bool:
        """Whether the CUDA kernels have its layers and row forms; plain torch runs the others on a GPU."""
        return self.gemma is not None or (not self.query_scale_beta and not self.dialect.is_full)

    @property
    def fits_int4_kernels(self) -> bool:
        """Whether the CUDA kernels compute it from int4 weights: those of routed experts have 16 bits or fp8."""
        return self.fits_cuda_kernels and self.moe is None

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Heads and dimensions of a layer's keys in the KV cache: one of the largest size where layers differ."""
        if self.gemma is None:
            return self.num_kv_heads, self.head_dim
        return 1, max(self.kv_dim, self.gemma.full_kv_dim)

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary)

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """0 where no KV is kept."""
        if not self.dialect.keeps_kv:
            return 0
        return 2 * self.num_layers * self.cache_shape[0] * self.cache_shape[1] * dtype_bytes

    def with_yarn(self, factor: float) -> ModelConfig:
        """The same network with a context `factor` times as long, by YaRN over the trained context."""
        if self.rope_scaling is not None or self.gemma is not None or not factor > 1:
            reason = "is extended already" if self.rope_scaling else f"cannot be extended {factor} times"
            raise CheckpointRefused(f"config: a context of {self.context_len} tokens {reason}")
        scaling = RopeScaling("yarn", factor, self.context_len)
        return replace(self, context_len=int(self.context_len * factor), rope_scaling=scaling)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], name: str = "") -> ModelConfig:
        """From a parsed config.json and the name of the checkpoint, which some families need. Raises CheckpointRefused
        for an unknown family or an unsupported option."""
        try:
            return _from_hf(config, name)
        except KeyError as error:
            raise CheckpointRefused(f"config.json has no {error.args[0]}") from error
        except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
            raise CheckpointRefused(f"config.json: {type(error).__name__}: {error}") from error

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """From GGUF metadata (`general.architecture`, `<arch>.block_count`, …).

        Two fields are not in the metadata; the caller adds them from the tensor list: `tensor.token_embd.rows`
        (vocabulary size) and `tensor.output` (whether there is a head of its own).
        """
        try:
            return _from_gguf(fields)
        except KeyError as error:
            raise CheckpointRefused(f"the GGUF metadata have no {error.args[0]}") from error
        except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
            raise CheckpointRefused(f"GGUF metadata: {type(error).__name__}: {error}") from error


def _from_hf(config: Mapping[str, Any], name: str) -> ModelConfig:
    saved_name = str(config.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    family = family_of_hf(config, f"{name} {saved_name}")
    dialect = family.dialect(config, name)
    config = family.standard_config(config)
    _refuse_unsupported(config, family)
    dim, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    return ModelConfig(
        family=family.name,
        num_layers=int(config["num_hidden_layers"]),
        dim=dim,
        ffn_dim=int(config["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or dim // heads),
        vocab_size=int(config["vocab_size"]),
        context_len=int(config["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope, int(config["max_position_embeddings"])),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        partial_rotary=float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0),
        moe=family.moe(config),
        gemma=family.gemma(config),
        query_scale_beta=float(rope.get("llama_4_scaling_beta") or 0.0),
        dialect=dialect,
    )


def _refuse_unsupported(config: Mapping[str, Any], family: Family) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointRefused(f"config.json: activation {config['hidden_act']!r} is not silu")
    if config.get("use_sliding_window") or config.get("mlp_bias"):
        raise CheckpointRefused("config.json: sliding windows and MLP biases are not supported")
    if config.get("attention_bias") and not family.qkv_bias:
        raise CheckpointRefused("config.json: attention_bias also puts a bias on the output projection, not supported")
    if config.get("quantization_config"):
        raise CheckpointRefused("config.json: quantised safetensors are not supported; use the unquantised weights")


def _rope_scaling(rope: Mapping[str, Any], context_len: int) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    original = int(rope.get("original_max_position_embeddings") or context_len)
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling("llama3", float(rope["factor"]), original, low_freq_factor=low, high_freq_factor=high)
    # Equal mscale factors cancel each other: cos and sin keep their size.
    cancels = rope.get("mscale") == rope.get("mscale_all_dim")
    if kind == "yarn" and cancels and rope.get("truncate", True):
        factor = rope.get("factor") or context_len / original
        attention = 1.0 if rope.get("mscale") else rope.get("attention_factor")
        fast, slow = float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1)
        return RopeScaling("yarn", float(factor), original, fast, slow, None if attention is None else float(attention))
    raise CheckpointRefused(f"config.json: rope scaling {kind!r} with these options is not supported")


def _from_gguf(fields: Mapping[str, Any]) -> ModelConfig:
    family = family_of_gguf(fields)
    arch = family.gguf_architecture
    heads, dim = int(fields[f"{arch}.attention.head_count"]), int(fields[f"{arch}.embedding_length"])
    head_dim = int(fields.get(f"{arch}.attention.key_length") or dim // heads)
    if int(fields.get(f"{arch}.rope.dimension_count") or head_dim) != head_dim:
        raise CheckpointRefused("GGUF metadata: partial rotary embeddings are not supported")
    return ModelConfig(
        family=family.name,
        num_layers=int(fields[f"{arch}.block_count"]),
        dim=dim,
        ffn_dim=int(fields[f"{arch}.feed_forward_length"]),
        num_heads=heads,
        num_kv_heads=int(fields.get(f"{arch}.attention.head_count_kv") or heads),
        head_dim=head_dim,
        vocab_size=int(fields["tensor.token_embd.rows"]),
        context_len=int(fields[f"{arch}.context_length"]),
        rope_theta=float(fields.get(f"{arch}.rope.freq_base") or 10_000.0),
        rope_scaling=_gguf_rope_scaling(fields, arch),
        norm_eps=float(fields[f"{arch}.attention.layer_norm_rms_epsilon"]),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        tied_head=not fields.get("tensor.output"),
    )


def _gguf_rope_scaling(fields: Mapping[str, Any], arch: str) -> RopeScaling | None:
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = float(fields[f"{arch}.rope.scaling.factor"])
    original = int(fields.get(f"{arch}.rope.scaling.original_context_length") or fields[f"{arch}.context_length"])
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "yarn":
        return RopeScaling("yarn", factor, original)
    raise CheckpointRefused(f"GGUF metadata: rope scaling {kind!r} is not supported")
