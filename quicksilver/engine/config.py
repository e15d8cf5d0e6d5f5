"""EngineConfig: the engine's limits, checked once and never changed afterwards.

Every field has a one-line help text: `help_texts(EngineConfig)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.backends.config import MAX_TREE_ROWS, BackendConfig
from quicksilver.core import setting
from quicksilver.errors import InvalidRequest

MATMUL_MODES = ("fastest", "batch_invariant")
# Share of free memory that KV pages may use: normally, and if one full context needs more.
USUAL_SHARE, LARGEST_SHARE = 0.5, 0.9


@dataclass(frozen=True, slots=True)
class EngineConfig:
    page_size: int = setting(16, "Tokens per KV page.")
    num_pages: int = setting(0, "KV pages; 0 plans them from `kv_bytes` or from free memory.")
    kv_bytes: int = setting(0, "Memory for KV pages; 0 takes half of the free memory, or what one full context needs.")
    spare_pages: int = setting(0, "KV pages held beyond a request's next forward; 0 leaves it to the backend.")
    cuda_graphs: bool = setting(True, "Run CUDA kernels in captured graphs on a GPU; otherwise plain torch.")
    matmul: str = setting(
        "fastest", "fastest, or batch_invariant: on a GPU the numbers of a request do not depend on its batch."
    )
    max_rows: int = setting(512, "Rows of one forward; longer prompts are prefilled in chunks.")
    max_score_rows: int = setting(16384, "Tokens of all continuations of one scoring request.")
    max_running: int = setting(64, "Requests that hold KV pages at the same time.")
    max_waiting: int = setting(1024, "Requests in the queue; further ones are refused.")
    context_len: int = setting(0, "Tokens of prompt and answer together; 0 takes the checkpoint's limit.")
    max_canvas_len: int = setting(32, "Longest canvas that a request may ask for.")
    canvas_rows: int = setting(
        0, "Rows of all `verify` canvases together: under load each gets fewer, at least 4. 0 sets no limit."
    )
    tree_rows: int = setting(
        -1, "Rows of a draft tree on a GPU: 0, 16 or 32; -1 picks by model size. Changes speed, never tokens."
    )
    logit_rows: int = setting(64, "Rows of logits that exist at the same time in the sampler.")

    def __post_init__(self) -> None:
        for name in ("page_size", "max_rows", "max_running", "max_canvas_len", "logit_rows", "max_score_rows"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"engine setting {name} must be at least 1", param=name)
        if self.tree_rows not in (-1, 0, 16, MAX_TREE_ROWS):
            raise InvalidRequest(f"engine setting tree_rows is 0, 16, {MAX_TREE_ROWS} or -1", param="tree_rows")
        if self.matmul not in MATMUL_MODES:
            raise InvalidRequest(f"engine setting matmul is {' or '.join(MATMUL_MODES)}", param="matmul")

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
            matmul=self.matmul,
            cuda_graphs=self.cuda_graphs,
            tree_rows=self.tree_rows,
        )


def plan_pages(config: EngineConfig, context_len: int, bytes_per_token: int, free_bytes: int) -> int:
    """The number of KV pages: `num_pages` if set, else at least enough for one full context. Raises InvalidRequest if
    the memory for that is not there."""
    if config.num_pages:
        return config.num_pages
    page_bytes = bytes_per_token * config.page_size
    needed = -(-(context_len + config.max_canvas_len) // config.page_size)
    usual = config.kv_bytes or int(free_bytes * USUAL_SHARE)
    largest = config.kv_bytes or int(free_bytes * LARGEST_SHARE)
    if needed * page_bytes > largest:
        fitting = max(largest // bytes_per_token - config.max_canvas_len, 0)
        raise InvalidRequest(
            f"one context of {context_len} tokens needs {needed * page_bytes >> 20} MiB of KV memory and "
            f"{largest >> 20} MiB are available; set context_len to {fitting} or less, "
            + ("or raise kv_bytes" if config.kv_bytes else "free memory, or load the weights in fewer bits"),
            param="kv_bytes" if config.kv_bytes else "context_len",
        )
    return max(usual // page_bytes, needed)
