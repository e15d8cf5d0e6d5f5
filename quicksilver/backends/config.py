"""Settings of a backend. This module does not import torch, so that the API process can use it."""

from __future__ import annotations

from dataclasses import dataclass

# Ancestors of a row of a draft tree are a 32-bit mask.
MAX_TREE_ROWS = 32


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Limits and number formats of a backend. `EngineConfig` and `LoadConfig` determine it."""

    max_rows: int = 512  # rows of one forward with requests that decode, and proposals of any forward
    prompt_rows: int = 512  # rows of one forward of prompts
    max_sequences: int = 64  # sequences in one forward
    context_len: int = 4096  # tokens of one sequence
    logit_rows: int = 64  # rows of logits that exist at the same time
    weights: str = "bfloat16"  # as loaded, or what the CUDA backend rounds to: fp8 or int4
    matmul: str = "fastest"  # fastest, or batch_invariant
    cuda_graphs: bool = True  # False runs plain torch on a GPU
    adapter_bytes: int = 0  # memory on a GPU for adapters that requests name; 0 applies none
    tree_rows: int = -1  # rows of a draft tree: 0, 16 or 32; -1 picks by the size of the network
    compile_threads: int = 0  # that compile the kernels of all graphs at a start; 0 compiles each at its first launch
