"""Llama and checkpoints of the same architecture, such as SmolLM2."""

from quicksilver.model.families.family import Family

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf_architecture="llama",
    gguf_interleaves_rope=True,
)
