"""Diffusion over a causal context: most of these checkpoints are also autoregressive models.

Nemotron-Labs-Diffusion has the network of Ministral 3, I-DLM that of Qwen3, WeDLM that of Qwen2.5 (7B) or Qwen3 (8B).
WeDLM is causal too, but its masked rows predict their own positions, so it has no autoregressive mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.model.families.block_diffusion import QWEN_STOP_IDS, size
from quicksilver.model.families.family import Family
from quicksilver.model.files.tensor_names import HF_NAMES


def _nemotron(config: Mapping[str, Any], name: str) -> Dialect:
    """A block is the last token before it, which is known, and masks. Its rows attend to each other and predict their
    own positions; committed rows are causal and predict the next one."""
    block_len = size(config, "block_size", 32)
    return Dialect(
        is_shifted=False,
        block_len=block_len,
        has_context_seed=True,
        is_prompt_aligned=True,
        has_draft_seed=True,
        mask_id=size(config, "mask_token_id", 100),
        stop_ids=(11,),
        decoders=(DecoderName.VERIFY, DecoderName.AR, DecoderName.CONFIDENCE),
        default=DecoderParams(DecoderName.VERIFY, canvas_len=block_len),
    )


def _idlm(config: Mapping[str, Any], name: str) -> Dialect:
    """Masked rows attend to earlier masks only, and predict the next position like every other row."""
    return Dialect(
        has_causal_canvas=True,
        mask_id=size(config, "mask_token_id", 151669),
        stop_ids=QWEN_STOP_IDS,
        decoders=(DecoderName.VERIFY, DecoderName.AR),
        default=DecoderParams(DecoderName.VERIFY, canvas_len=4),
    )


def _wedlm(config: Mapping[str, Any], name: str) -> Dialect:
    """Rows attend to the rows before them, in the order in which positions were filled; masked rows predict their own
    positions. The mask token is null in the published configs."""
    return Dialect(
        is_shifted=False,
        has_causal_canvas=True,
        mask_id=size(config, "mask_token_id", 151665),
        stop_ids=QWEN_STOP_IDS,
        decoders=(DecoderName.WINDOW,),
        default=DecoderParams(DecoderName.WINDOW, entropy_bound=0.4),
    )


def _has_qk_norm(config: Mapping[str, Any]) -> bool:
    return bool(config.get("qk_norm"))


def _has_no_qk_norm(config: Mapping[str, Any]) -> bool:
    return not config.get("qk_norm")


NEMOTRON_NAMES = {
    target: tuple(name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head") for name in names)
    for target, names in HF_NAMES.items()
}

NEMOTRON = Family(
    name="nemotron-labs-diffusion",
    architecture="NemotronLabsDiffusionModel",
    model_types=("nemotron_labs_diffusion",),
    dialect=_nemotron,
    hf_names=NEMOTRON_NAMES,
)
WEDLM_7B = Family(
    name="wedlm-7b",
    architecture="WeDLMForCausalLM",
    model_types=("wedlm",),
    dialect=_wedlm,
    qkv_bias=True,
    has_body=_has_no_qk_norm,
)
WEDLM_8B = Family(
    name="wedlm-8b",
    architecture="WeDLMForCausalLM",
    model_types=("wedlm",),
    dialect=_wedlm,
    qk_norm=True,
    has_body=_has_qk_norm,
)
# Its configs name SDAR's class: only the name of the checkpoint tells them apart.
IDLM = Family(
    name="i-dlm",
    architecture="SDARForCausalLM",
    model_types=("sdar",),
    dialect=_idlm,
    qk_norm=True,
    name_pattern=r"(?<![a-z])i-?dlm",
)
