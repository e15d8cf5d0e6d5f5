"""Qwen2 and Qwen2.5: biases on the q, k and v projections."""

from quicksilver.model.families.family import Family

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_architecture="qwen2",
    qkv_bias=True,
)
