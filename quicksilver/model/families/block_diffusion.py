"""Block diffusion with an exact cache: each token attends to its own block and to all blocks before it.

SDAR and Efficient-DLM have the network of Qwen3, Stable-DiffCoder that of Llama, and Fast-dLLM v2 that of
Qwen2.5. They differ in block length, mask token, and in whether a row predicts its own position or the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import ContextKind, Dialect
from quicksilver.model.families.family import Family

QWEN_STOP_IDS = (151643, 151645)


def block_dialect(block_len: int, mask_id: int, stop_ids: tuple[int, ...], threshold: float) -> Dialect:
    """Blocks counted from position 0; the row of a masked position predicts this position."""
    return Dialect(
        context=ContextKind.BLOCK,
        is_shifted=False,
        block_len=block_len,
        mask_id=mask_id,
        stop_ids=stop_ids,
        decoders=(DecoderName.CONFIDENCE, DecoderName.EDIT),
        default=DecoderParams(DecoderName.CONFIDENCE, threshold=threshold),
    )


def size(config: Mapping[str, Any], key: str, default: int) -> int:
    """A size of the config, or `default` if it is missing or null."""
    value = config.get(key)
    return default if value is None else int(value)


def _sdar(config: Mapping[str, Any], name: str) -> Dialect:
    """Uploads often lack both keys. The block length is then in the name: SDAR-8B-Chat-b16."""
    suffix = re.search(r"-b(\d+)$", name)
    block_len = size(config, "block_size", int(suffix[1]) if suffix else 4)
    return block_dialect(block_len, size(config, "mask_token_id", 151669), QWEN_STOP_IDS, threshold=0.9)


def _efficient_dlm(config: Mapping[str, Any], name: str) -> Dialect:
    mask_id = size(config, "mask_token_id", 151662)
    return block_dialect(size(config, "block_size", 32), mask_id, QWEN_STOP_IDS, threshold=0.9)


def _stable_diffcoder(config: Mapping[str, Any], name: str) -> Dialect:
    """The block length and the mask token are arguments of its generate function, with these defaults."""
    return block_dialect(size(config, "block_size", 4), size(config, "mask_token_id", 5), (2,), threshold=0.95)


def _fast_dllm(config: Mapping[str, Any], name: str) -> Dialect:
    """A row predicts the next position; the row of a block's last token predicts the first one of the next block."""
    return Dialect(
        context=ContextKind.BLOCK,
        block_len=size(config, "bd_size", size(config, "block_size", 32)),
        sub_block_len=8,
        has_context_seed=True,
        mask_id=size(config, "mask_token_id", 151665),
        stop_ids=(151645,),
        decoders=(DecoderName.CONFIDENCE,),
        default=DecoderParams(DecoderName.CONFIDENCE, threshold=0.9),
    )


SDAR = Family(name="sdar", architecture="SDARForCausalLM", dialect=_sdar, qk_norm=True)
EFFICIENT_DLM = Family(
    name="efficient-dlm",
    architecture="EfficientDLM",
    model_types=("qwen3", "edlm"),
    dialect=_efficient_dlm,
    qk_norm=True,
)
STABLE_DIFFCODER = Family(
    name="stable-diffcoder",
    architecture="StableDiffcoderForCausalLM",
    model_types=("llama",),
    dialect=_stable_diffcoder,
)
FAST_DLLM = Family(
    name="fast-dllm-v2",
    architecture="Fast_dLLM_QwenForCausalLM",
    model_types=("Fast_dLLM_Qwen",),
    dialect=_fast_dllm,
    qkv_bias=True,
)
