"""Compiles the kernels of rounds of many sequences for Hopper without a GPU and prints their names.
`test_triton_compile.py` runs it."""

from __future__ import annotations

from typing import Any

import triton
from triton.compiler import ASTSource

from quicksilver.backends.cuda.kernels.decode_attention import _decode_kernel
from quicksilver.backends.cuda.kernels.round_linears import _sums_kernel, _swiglu_tile_kernel
from tests.backends.cuda.kernels.compile_for_hopper import HOPPER

_INTS = ("num_outputs", "K", "N", "depth", "tiles", "row_stride", "max_pages", "num_rows")
_INT32 = ("arrived", "prefix_end", "span_start", "span_end", "pages", "slots")
_FP32 = ("sums", "part_acc", "part_top", "part_total", "steps", "angles")


def type_of(name: str, types: dict[str, str]) -> str:
    if name in types:
        return types[name]
    if name in ("scale", "head_eps"):
        return "fp32"
    if name in _INTS:
        return "i32"
    return "*i32" if name in _INT32 else "*fp32" if name in _FP32 else "*bf16"


def compile_kernel(
    kernel: Any, instruction: str, constants: dict[str, int | bool], num_stages: int, **types: str
) -> None:
    """`types`: of descriptors, and of arguments whose type differs between uses of a kernel."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else type_of(name, types) for name in names}
    chosen = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=chosen)
    made = triton.compile(source, target=HOPPER, options={"num_stages": num_stages})
    assert instruction in made.asm["ptx"], kernel.__name__
    print(kernel.__name__, constants)


def main() -> None:
    for rows in (64, 128):
        tiles = {"x": f"tensordesc<bf16[{rows}, 128]>", "w_tiles": "tensordesc<bf16[64, 128]>"}
        shape = {"ROWS": rows, "BLOCK_N": 64, "BLOCK_K": 128, "LINES": 4, "PDL": 1}
        compile_kernel(_sums_kernel, "wgmma", shape, 4, **tiles)
        tiles = {"x": f"tensordesc<bf16[{rows}, 64]>", "w_tiles": "tensordesc<bf16[2, 32, 64]>"}
        shape = {"ROWS": rows, "BLOCK_N": 32, "BLOCK_K": 64, "LINES": 4, "PDL": 1}
        compile_kernel(_swiglu_tile_kernel, "wgmma", shape, 3, **tiles)
    attention = {
        "HEADS": 12, "KV_HEADS": 2, "D": 128, "PAGE": 16, "BLOCK_N": 64, "SPLITS": 4, "MIN_BLOCKS": 2, "PDL": 1,
        "INPUT_SCALE": 1.0,
    }  # fmt: skip
    for block_m, is_fp8 in ((16, False), (64, True)):
        rows_of_many = {"BLOCK_M": block_m, "QKV_SPLITS": 0, "BIAS": False, "NORM": False, "FP8": is_fp8}
        out = "*fp8e4nv" if is_fp8 else "*bf16"
        compile_kernel(_decode_kernel, "mma", attention | rows_of_many, 2, tiles="*i32", out=out)
    for splits, kind in ((4, "*fp32"), (1, "*bf16")):
        raw = {"BLOCK_M": 16, "QKV_SPLITS": splits, "BIAS": True, "NORM": splits > 1, "FP8": False}
        compile_kernel(_decode_kernel, "mma", attention | raw, 2, tiles="*i32", sums=kind)


if __name__ == "__main__":
    main()
