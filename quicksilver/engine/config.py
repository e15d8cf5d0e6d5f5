"""EngineConfig: what an operator may set, checked once, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.backends.base import MAX_TREE_ROWS, BackendConfig
from quicksilver.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    page_size: int = 16
    """Tokens per KV page."""
    num_pages: int = 0
    """KV pages; 0 plans them from free memory."""
    kv_bytes: int = 0
    """Memory for KV when `num_pages` is 0; 0 takes a share of what is free."""
    spare_pages: int = 0
    """KV pages held beyond a request's next forward, so that a GPU can run verify rounds ahead of the host."""
    cuda_graphs: bool = True
    """Whether a GPU runs captured graphs and our own kernels; plain torch otherwise."""
    gpu_products: str = "fastest"
    """fastest, or fixed: products of at most 64 rows with one order of additions, so that a request's numbers do not
    depend on what runs beside it."""
    max_rows: int = 512
    """Row budget of one forward: prompts are cut into chunks that fit beside the canvases."""
    max_score_rows: int = 16384
    """Tokens of all continuations of one scoring request."""
    max_running: int = 64
    """Requests that hold pages at the same time."""
    max_waiting: int = 1024
    """Requests that may queue; one more is refused."""
    context_len: int = 0
    """Token limit of prompt and answer together; 0 takes the checkpoint's."""
    max_canvas_len: int = 32
    """Longest canvas a request may ask for."""
    canvas_rows: int = 0
    """Rows that all `verify` canvases together should not exceed: they shrink as more requests run, down to four. What
    they commit is the same at any length. 0 sets no limit; a GPU, which times its forwards, has a large one."""
    tree_rows: int = -1
    """Rows that a lone `verify` request's rounds of 16 verify on a GPU, as a tree of drafts: 16 or 32; 0 for a single
    draft, -1 for what is usual. It decides how many tokens a round gives, never which."""
    logit_rows: int = 64
    """Rows of logits that exist at once in the sampler."""

    def __post_init__(self) -> None:
        for name in ("page_size", "max_rows", "max_running", "max_canvas_len", "logit_rows", "max_score_rows"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"engine setting {name} must be at least 1", param=name)
        if self.tree_rows not in (-1, 0, 16, MAX_TREE_ROWS):
            raise InvalidRequest(f"engine setting tree_rows is 0, 16, {MAX_TREE_ROWS} or -1", param="tree_rows")
        if self.gpu_products not in ("fastest", "fixed"):
            raise InvalidRequest("engine setting gpu_products is fastest or fixed", param="gpu_products")

    @property
    def score_pass_rows(self) -> int:
        """Rows that a scoring request may have in one forward: half of the budget, so that others run beside it."""
        return max(self.max_rows // 2, 1)

    def for_backend(self, context_len: int, weights: str) -> BackendConfig:
        return BackendConfig(
            max_rows=self.max_rows,
            max_sequences=self.max_running,
            context_len=context_len,
            logit_rows=self.logit_rows,
            weights=weights,
            matmul="fastest" if self.gpu_products == "fastest" else "batch_invariant",
            cuda_graphs=self.cuda_graphs,
            tree_rows=self.tree_rows,
        )


def plan_pages(config: EngineConfig, bytes_per_token: int, free_bytes: int) -> int:
    """How many KV pages to allocate: as asked, or half of what is free, at least enough for one full context."""
    if config.num_pages:
        return config.num_pages
    budget = config.kv_bytes or free_bytes // 2
    return max(budget // (bytes_per_token * config.page_size), 1)
