"""Qwen3: RMSNorm over each query and key head."""

from quicksilver.model.families.family import Family

QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    qk_norm=True,
)
