"""Compiles the kernels of DiffusionGemma for Hopper at their real sizes, and prints names and shared memory.

`test_triton_compile.py` runs it. Sizes are divisible by 16, as at a launch: without that loads are not pipelined.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quicksilver.backends.cuda.kernels import canvas_head, gemma_experts, gemma_router, gemma_rows, window_attention
from quicksilver.backends.cuda.kernels.gemma_experts import pick_tilings

HOPPER = GPUTarget("cuda", 90, 32)
# Bytes of shared memory of a program on an H100 and an H200.
MAX_SHARED = 227 * 1024
_FP8 = "*fp8e4nv"
_INTS = ("dim", "ffn", "D", "F", "V", "num_rows", "num_tiles", "num_pairs", "capacity", "row_stride", "slot_stride")
_TYPES = {
    "i32": (*_INTS, "max_pages", "window"),
    "fp32": ("eps", "cap", "scale"),
    "*i32": ("prefix_end", "slots", "span_start", "span_end", "tiles", "pages", "counts", "pairs", "arrived", "records",
             "token_ids", "gate", "results"),
    "*fp32": ("part_acc", "part_top", "part_total", "steps", "dense_steps", "sparse_steps", "inverse_rms", "angles",
              "scores", "expert_scale", "weights", "step_temperature", "temperature", "log_totals", "x_steps",
              "w_scale", "hidden_steps"),
    "*i64": ("seeds", "positions"),
}  # fmt: skip


def compile_kernel(kernel: Any, constants: dict[str, Any], options: dict[str, int], **types: str) -> None:
    """`types`: those that are not the usual ones of a name. Other arguments are bf16 arrays."""
    constants, names = {**constants, "PDL": 0} if "PDL" in kernel.arg_names else constants, kernel.arg_names
    usual = {name: kind for kind, members in _TYPES.items() for name in members}
    found = {name: types.get(name) or usual.get(name, "*bf16") for name in names}
    signature = {name: "constexpr" if name in constants else found[name] for name in names}
    even = [i for i, name in enumerate(names) if name not in constants and (found[name][0] == "*" or name in _INTS)]
    source = ASTSource(
        fn=kernel, signature=signature, constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in even},
    )  # fmt: skip
    made = triton.compile(source, target=HOPPER, options=options)
    assert made.metadata.shared <= MAX_SHARED, f"{kernel.__name__} needs {made.metadata.shared} bytes of shared memory"
    print(kernel.__name__, made.metadata.shared)


def attention(splits: int) -> None:
    shared = {"HEADS": 16, "PAGE": 16, "SPLITS": splits}
    near = {"KV_HEADS": 8, "D": 256, "PARTS": 1, "PART_ROWS": 64, "BLOCK_M": 128, "BLOCK_N": 64, "WINDOWED": True}
    full = {"KV_HEADS": 2, "D": 512, "PARTS": 8, "PART_ROWS": 8, "BLOCK_M": 64, "BLOCK_N": 32, "WINDOWED": False}
    for layer in (near, full):
        compile_kernel(window_attention._attend_kernel, {**shared, **layer}, {"num_warps": 8, "num_stages": 2})
    merge = {"HEADS": 16, "BLOCK_H": 16, "D": 512, "SPLITS": 4, "FP8": True}
    compile_kernel(window_attention._merge_kernel, merge, {"num_warps": 8}, out=_FP8)


def experts(height: int, is_fp8: bool) -> None:
    first, second = pick_tilings(height, is_fp8)
    shared = {"HEIGHT": height, "EVEN": True, "FP8": is_fp8}
    matrix = _FP8 if is_fp8 else "*bf16"
    types = {"x": matrix, "w": matrix, "num_tiles": "*i32"}
    tiling = {"BLOCK_N": first.block_n, "BLOCK_K": first.block_k, "TOP_K": 8, "GELU": True}
    options = {"num_warps": first.num_warps, "num_stages": first.num_stages}
    compile_kernel(gemma_experts._gate_up_kernel, {**shared, **tiling}, options, **types)
    options = {"num_warps": second.num_warps, "num_stages": second.num_stages}
    down = {**shared, "BLOCK_N": second.block_n, "BLOCK_K": second.block_k}
    compile_kernel(gemma_experts._down_kernel, down, options, **types, hidden=matrix)


def rows() -> None:
    wide = {"BLOCK": 4096, "FP8": True}
    begin = {**wide, "HAS_CANVAS": True}
    compile_kernel(gemma_rows._begin_kernel, begin, {"num_warps": 8}, out=_FP8, scale="*bf16")
    both = {**wide, "SPARSE_FP8": True}
    compile_kernel(gemma_rows._after_attention_kernel, both, {"num_warps": 8}, dense=_FP8, sparse=_FP8)
    compile_kernel(gemma_rows._end_layer_kernel, {**wide, "TOP_K": 8}, {"num_warps": 8}, out=_FP8)
    compile_kernel(gemma_rows._gelu_kernel, wide, {"num_warps": 8}, out=_FP8)
    heads = {"HEADS": 16, "KV_HEADS": 2, "SOURCE_HEADS": 18, "D": 512, "BLOCK_R": 2}
    compile_kernel(gemma_rows._heads_kernel, heads, {"num_warps": 4})


def router_and_head() -> None:
    scores = {"NUM_EXPERTS": 128, "EXPERTS": 128, "PARTS": 3, "ROWS": 32, "DEPTH": 256, "BLOCK_K": 64}
    compile_kernel(gemma_router._scores_kernel, scores, {"num_warps": 4, "num_stages": 3})
    choose = {"NUM_EXPERTS": 128, "EXPERTS": 128, "SPLITS": 11, "TOP_K": 8, "PLACES": 8, "HEIGHT": 32}
    compile_kernel(gemma_router._choose_kernel, choose, {"num_warps": 1}, num_tiles="*i32")
    tile = {"BLOCK": canvas_head.BLOCK_V}
    compile_kernel(canvas_head._tile_kernel, tile, {"num_warps": 8}, tiles="*fp32", steps="*i64")
    compile_kernel(canvas_head._row_kernel, {"BLOCK": 64}, {"num_warps": 1}, tiles="*fp32")
    compile_kernel(canvas_head._probability_kernel, tile, {"num_warps": 8})


def main() -> None:
    attention(4)
    for height, is_fp8 in ((32, True), (128, True), (32, False)):
        experts(height, is_fp8)
    rows()
    router_and_head()


if __name__ == "__main__":
    main()
