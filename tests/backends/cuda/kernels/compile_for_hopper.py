"""Compiles kernels for Hopper without a GPU and prints their names. `test_triton_compile.py` runs it.

The interpreter accepts code that the compiler refuses, for example functions whose returns differ in shape.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quicksilver.backends.cuda.block_kernels import _decide_kernel, _rows_kernel
from quicksilver.backends.cuda.kernels.adapter_kernels import expand_kernel, shrink_kernel
from quicksilver.backends.cuda.kernels.expert_kernels import down_kernel, gate_up_kernel
from quicksilver.backends.cuda.kernels.int4_dequantise import _dequantise_kernel
from quicksilver.backends.cuda.kernels.linear_kernels import add_kernel, qkv_kernel, swiglu_kernel
from quicksilver.backends.cuda.kernels.router import _route_kernel

HOPPER = GPUTarget("cuda", 90, 32)
_INTS = ("ax_depth", "tiles", "K", "N", "depth", "D", "F", "capacity", "num_rows", "page_stride", "line_len")
_FLOATS = ("eps", "head_eps", "factor")
_FP32 = ("sums", "squares", "scale", "shared_scale", "angles", "parts", "logits", "weights", "terms", "low")
_INT32 = ("arrived", "positions", "slots", "num_tiles", "pairs", "counts", "records", "chosen", "prefix_end")
_INT32 += ("span_start", "span_end", "row_tiles", "lines")
_BF16 = ("stream", "gain", "q_gain", "k_gain", "k_cache", "v_cache", "bias", "router")
# Inputs and outputs of experts: in the model's dtype, or fp16 with quantised weights.
_EXPERT_ROWS = ("x", "hidden", "normed")
_ROUTER: dict[str, int | bool] = {
    "NUM_EXPERTS": 256, "TOP_K": 8, "NUM_GROUPS": 8, "TOP_GROUPS": 4, "GROUPS": 8, "SIZE": 32, "PLACES": 9, "SLOTS": 16,
    "SIGMOID": True, "BIAS": True, "NORMALISED": True, "SKIPS": True, "INPUT_SCALE": 1, "HAS_NORMED": True,
    "LISTS": 512, "HEIGHT": 16, "ROWS": 16, "BLOCK_K": 128, "TILES": 16,
    "TILE_SLOTS": 16, "BLOCK": 512, "BLOCKS": 4, "LINES": 32, "PDL": 1,
}  # fmt: skip


def type_of(name: str, weight: str) -> str:
    """The type of a kernel's argument, for weights of type `weight`."""
    if name in ("w", "shared"):
        return weight
    if name in _EXPERT_ROWS and weight == "*bf16":
        return weight
    if name in ("groups", "steps") and weight == "*i16":
        return "*i32"
    if name in _INTS or name in _FLOATS:
        return "i32" if name in _INTS else "fp32"
    by_type = {"*fp32": _FP32, "*i32": _INT32, "*bf16": _BF16}
    return next((kind for kind, names in by_type.items() if name in names), "*fp16")


def compile_kernel(kernel: Any, weight: str, constants: dict[str, int | bool], **types: str) -> None:
    """`types`: of arguments whose type differs between uses of a kernel."""
    names = kernel.arg_names
    types = {name: types.get(name) or type_of(name, weight) for name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items() if name in names}
    made = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=chosen), target=HOPPER)
    assert "mma" in made.asm["ptx"] or kernel is _dequantise_kernel
    # The order of a reduction follows from a layout, which may depend on the number of rows.
    assert not (constants.get("FIXED") and "tt.reduce" in made.asm["ttgir"])
    print(kernel.__name__, weight, constants.get("ROWS"), constants.get("SPLITS"))


def compile_block_kernel(kernel: Any, constants: dict[str, int | bool]) -> None:
    """All of its arrays are int32."""
    names = kernel.arg_names
    numbers = ("num_rows", "max_pages", "num_heads", "mask_id", "count", "capacity")
    types = {name: "i32" if name in numbers else "*i32" for name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items() if name in names}
    triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=chosen), target=HOPPER)
    print(kernel.__name__, constants["L"])


def linear(rows: int, splits: int, has_terms: bool = False) -> dict[str, int | bool]:
    return {
        "ROWS": rows, "BLOCK_N": 64, "BLOCK_K": 64, "SPLITS": splits, "SLICE": 16, "FINISHERS": 1, "EVEN": True,
        "TILES": 4, "SCALE": True, "AX_SPLITS": 1, "RANK": 0, "LINES": 1, "PREFETCHES": True, "FP8": False, "GROUP": 64,
        "GROUPS": 1, "BIAS": False, "HEADS": 4, "KV_HEADS": 2, "NORM": True, "ROTARY": 128, "TERMS": has_terms,
        "FIXED": splits > 1, "PDL": 1,
    }  # fmt: skip


def main() -> None:
    for weight in ("*fp8e4nv", "*i16"):
        for shape in (linear(32, 1), linear(64, 2), linear(64, 2, has_terms=True)):
            for kernel in (qkv_kernel, swiglu_kernel, add_kernel):
                names = set(kernel.arg_names)
                compile_kernel(kernel, weight, {name: value for name, value in shape.items() if name in names})
    compile_kernel(_dequantise_kernel, "*i16", {"WORDS": 512, "PDL": 1})
    for height, weight in product((16, 64), ("*bf16", "*fp8e4nv")):
        is_fp8 = weight == "*fp8e4nv"
        shape = {
            "NUM_EXPERTS": 256, "PLACES": 9, "HEIGHT": height, "BLOCK_N": 64, "BLOCK_K": 128 if is_fp8 else 64,
            "EVEN": True, "SHARED": True, "SCALE": is_fp8, "GELU": False, "PDL": 1,
        }  # fmt: skip
        compile_kernel(gate_up_kernel, weight, shape)
        compile_kernel(down_kernel, weight, shape)
    for length, block in ((4, 4), (6, 8), (32, 32)):
        layout = {"COUNT": 128, "PAGE": 16, "TILE_ROWS": 16, "TILES": -(-2 * length // 16), "SHIFTED": length == 32}
        compile_block_kernel(_rows_kernel, {"L": length, "BLOCK": block, "PDL": 1, **layout})
        rule = {"SUB_BLOCK": length, "SHIFTED": length == 32, "EDIT_RULE": 3, "EDIT_STEPS": 4}
        compile_block_kernel(_decide_kernel, {"L": length, "BLOCK": block, "PDL": 1, **rule})
    for block_e in (16, 64):
        compile_kernel(_route_kernel, "*bf16", _ROUTER | {"BLOCK_E": block_e})
    for tile in (16, 64):
        rows = {"LINEAR": 2, "TILE": tile, "RANK": 768, "PDL": 1}
        for is_fp8, kind in ((False, "*bf16"), (True, "*fp8e4nv")):
            shrink = {**rows, "BLOCK_K": 64 if is_fp8 else 256, "FP8": is_fp8, "GROUP": 64}
            compile_kernel(shrink_kernel, "*bf16", shrink, x=kind)
        for adds in (False, True):
            expand = {**rows, "BLOCK_N": 256, "SPLITS": 3, "ADDS": adds}
            compile_kernel(expand_kernel, "*bf16", expand, y="*bf16" if adds else "*fp32")


if __name__ == "__main__":
    main()
