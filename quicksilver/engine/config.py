"""EngineConfig: the engine's limits, checked once and never changed afterwards.

Every field has a one-line help text: `help_texts(EngineConfig)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.backends.config import MAX_TREE_ROWS, BackendConfig
from quicksilver.core import setting
from quicksilver.dialect import Dialect
from quicksilver.errors import InvalidRequest

MATMUL_MODES = ("fastest", "batch_invariant")
# Share of free memory that KV pages may use: normally, and if one full context needs more.
USUAL_SHARE, LARGEST_SHARE = 0.5, 0.9
# Defaults of `max_running`. On a GPU every request gets this many tokens of KV memory on average.
CPU_MAX_RUNNING, GPU_MAX_RUNNING, GPU_TOKENS_EACH = 64, 512, 2048
# Default of `prompt_rows` on a GPU. Batch-invariant products take at most 256 rows at a time, so larger forwards gain
# nothing there.
GPU_PROMPT_ROWS = 8192
# Default of `decode_rows` on a GPU: the rows of GPU_CANVASES random canvases, or of GPU_BLOCKS blocks, each with the
# canvas or block that is committed in the same forward; at most GPU_DECODE_ROWS.
GPU_CANVASES, GPU_BLOCKS, GPU_DECODE_ROWS = 8, 128, 8192
# At most this many with CUDA kernels, because graphs of all sizes up to it are captured when the engine starts.
GRAPH_DECODE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class EngineConfig:
    page_size: int = setting(16, "Tokens per KV page.")
    num_pages: int = setting(0, "KV pages; 0 plans them from `kv_bytes` or from free memory.")
    kv_bytes: int = setting(0, "Memory for KV pages; 0 takes half of the free memory, or what one full context needs.")
    memory_share: float = setting(1.0, "Share of the free memory that this model may use, beside others.")
    reserved_bytes: int = setting(0, "Free memory that is left to models that are loaded later.")
    spare_pages: int = setting(0, "KV pages held beyond a request's next forward; 0 leaves it to the backend.")
    cuda_graphs: bool = setting(True, "Run CUDA kernels in captured graphs on a GPU; otherwise plain torch.")
    matmul: str = setting(
        "fastest", "fastest, or batch_invariant: on a GPU the numbers of a request do not depend on its batch."
    )
    max_rows: int = setting(512, "Rows of one forward; longer prompts are prefilled in chunks.")
    decode_rows: int = setting(
        0, "Rows of one forward for requests that decode; 0 is `max_rows`, and more for diffusion models on a GPU."
    )
    prompt_rows: int = setting(
        0, "Rows of a forward while no request decodes; 0 is 8192 on a GPU, and `max_rows` elsewhere."
    )
    doubling_context: int = setting(
        0, "Cached tokens that double the time of a prompt's row; 0 estimates it from the model's shape on a CPU."
    )
    max_score_rows: int = setting(16384, "Tokens of all continuations of one scoring request.")
    max_running: int = setting(
        0, "Requests that hold KV pages at the same time; 0 is 64 on a CPU, and up to 512 on a GPU by its KV memory."
    )
    max_waiting: int = setting(1024, "Requests in the queue; further ones are refused.")
    max_tenant_rows: int = setting(
        0, "Prompt and scoring rows that one tenant may have open while other tenants are active; 0 sets no limit."
    )
    shared_step_ms: float = setting(
        0.0, "Milliseconds that a forward with prompts should take while several tenants are active; 0 sets no limit."
    )
    context_len: int = setting(0, "Tokens of prompt and answer together; 0 takes the checkpoint's limit.")
    max_canvas_len: int = setting(32, "Longest canvas that a request may ask for.")
    canvas_rows: int = setting(
        0, "Rows of all `verify` canvases together: under load each gets fewer, at least 1. 0 sets no limit."
    )
    tree_rows: int = setting(
        -1, "Rows of a draft tree on a GPU: 0, 16 or 32; -1 picks by model size. Changes speed, never tokens."
    )
    stale_prefix: bool = setting(False, "LLaDA, Dream: keep the KV of the prompt within a block, which is approximate.")
    logit_rows: int = setting(64, "Rows of logits that exist at the same time in the sampler.")
    adapter_bytes: int = setting(
        1 << 30, "Memory for adapters of requests; on a GPU at most a sixteenth of the free memory; 0 turns them off."
    )

    # 0 until a start with threads was measured on a GPU.
    compile_threads: int = setting(
        0, "Threads that compile the CUDA kernels of a first start; 0 compiles each kernel when it is first run."
    )

    def __post_init__(self) -> None:
        for name in ("page_size", "max_rows", "max_canvas_len", "logit_rows", "max_score_rows"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"engine setting {name} must be at least 1", param=name)
        if self.prompt_rows and self.prompt_rows < self.max_rows:
            raise InvalidRequest("engine setting prompt_rows must be at least max_rows", param="prompt_rows")
        if self.decode_rows and self.decode_rows < self.max_rows:
            raise InvalidRequest("engine setting decode_rows must be at least max_rows", param="decode_rows")
        if self.compile_threads < 0:
            raise InvalidRequest("engine setting compile_threads must be at least 0", param="compile_threads")
        if self.max_running < 0:
            raise InvalidRequest(
                "engine setting max_running must be at least 1, or 0 for a default", param="max_running"
            )
        if self.tree_rows not in (-1, 0, 16, MAX_TREE_ROWS):
            raise InvalidRequest(f"engine setting tree_rows is 0, 16, {MAX_TREE_ROWS} or -1", param="tree_rows")
        if self.matmul not in MATMUL_MODES:
            raise InvalidRequest(f"engine setting matmul is {' or '.join(MATMUL_MODES)}", param="matmul")

    @property
    def running_limit(self) -> int:
        """`max_running`, or its default on a CPU."""
        return self.max_running or CPU_MAX_RUNNING

    @property
    def decode_limit(self) -> int:
        """`decode_rows`, or its default without a GPU."""
        return self.decode_rows or self.max_rows

    @property
    def prompt_limit(self) -> int:
        """`prompt_rows`, or its default without a GPU."""
        return self.prompt_rows or self.max_rows

    @property
    def score_pass_rows(self) -> int:
        """Rows that a scoring request may have in one forward beside other requests: half of the budget. It is also the
        length of the longest continuation whose next token can be scored."""
        return max(self.max_rows // 2, 1)

    def for_backend(self, context_len: int, weights: str) -> BackendConfig:
        return BackendConfig(
            max_rows=self.decode_limit,
            prompt_rows=max(self.prompt_limit, self.decode_limit),
            max_sequences=self.running_limit,
            context_len=context_len,
            logit_rows=self.logit_rows,
            weights=weights,
            matmul=self.matmul,
            cuda_graphs=self.cuda_graphs,
            tree_rows=self.tree_rows,
            adapter_bytes=self.adapter_bytes,
            compile_threads=self.compile_threads,
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


def fitting_adapter_bytes(wanted: int, free_bytes: int, context_bytes: int) -> int:
    """Memory of a GPU for adapters: `wanted`, at most a sixteenth of what is free, and none where the KV of one full
    context would not fit beside it."""
    fitting = min(wanted, free_bytes // 16)
    return fitting if context_bytes <= int((free_bytes - fitting) * LARGEST_SHARE) else 0


def plan_running(config: EngineConfig, num_pages: int, is_cuda: bool) -> int:
    """`max_running` if set, else the default of the device. More requests than the KV memory holds would only preempt
    each other."""
    if config.max_running or not is_cuda:
        return config.running_limit
    fitting = num_pages * config.page_size // GPU_TOKENS_EACH
    return min(max(fitting, CPU_MAX_RUNNING), GPU_MAX_RUNNING)


def plan_prompt_rows(config: EngineConfig, has_kernels: bool) -> int:
    """`prompt_rows` if set, else the default: more than `max_rows` only where CUDA kernels attend to a prompt. Plain
    torch needs a mask of rows times keys, which would take gigabytes."""
    if config.prompt_rows or not has_kernels or not config.cuda_graphs or config.matmul == "batch_invariant":
        return config.prompt_limit
    return max(GPU_PROMPT_ROWS, config.max_rows)


def plan_decode_rows(config: EngineConfig, dialect: Dialect, is_cuda: bool, has_kernels: bool = False) -> int:
    """`decode_rows` if set, else the default of the device and the dialect. A `max_rows` that was set is kept."""
    is_set = config.decode_rows or config.max_rows != EngineConfig().max_rows
    if is_set or not is_cuda:
        return config.decode_limit
    if dialect.noise_vocab:
        # Without kernels a canvas waits while another one is committed.
        return max(GPU_CANVASES * dialect.default.canvas_len * (2 if has_kernels else 1), config.max_rows)
    rows = 2 * dialect.block_len * min(config.running_limit, GPU_BLOCKS)
    return max(min(rows, GRAPH_DECODE_ROWS if has_kernels else GPU_DECODE_ROWS), config.max_rows)
