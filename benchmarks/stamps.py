"""Time stamps for `layer_fused.cu`: inserts a clock read after each part of a layer into the kernel's source.

Needs no GPU; `gpu_clocks.py` compiles and runs the result.
"""

from __future__ import annotations

# After this line a warp has its share of an input, in every linear.
_INPUT = "        else poll_input(x, state, input, begin);\n"
# The work of the first MMA thread of a CTA, and the line that ends each part. The time of an input includes the wait
# for the CTAs that produce it.
PARTS = (
    ("merge", "    sync_merge_warps();\n"),
    ("output, input", _INPUT),
    ("output", "        mma_linear<Output>(state, state.args.attended);\n"),
    ("gate and up, input", _INPUT),
    ("gate and up", "        mma_linear<GateUp>(state, state.args.ffn_input);\n"),
    ("down, input", _INPUT),
    ("down", "        mma_linear<Down>(state, state.args.ffn);\n"),
    ("qkv, input", _INPUT),
    ("qkv", "    if (state.args.has_qkv) mma_linear<Qkv>(state, state.args.qkv_input);\n"),
)
NUM_STAMPS = 1 + len(PARTS)
# Values per CTA: its stamps, and the nanoseconds at the first and at the last.
WIDTH = NUM_STAMPS + 2

# After the wait for attention, before the merge.
_BEGIN = ("    pdl_wait();\n", "    for (; at < ROWS * HEADS; at += NUM_CTAS * MERGE_WARPS) {\n")
_STATE = "    int stages_used;  // of the ring buffer, so far\n};\n"
_WRITER = """
DEVICE void stamp(const ThreadState &state, int index) {{
    if (state.thread != 0 || !state.args.has_layer || !state.args.has_qkv) return;
    long long *mine = (long long *){address}ULL + cta_index() * {width}, nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    mine[index] = clock64();
    if (index == 0 || index == {last}) mine[index == 0 ? {width} - 2 : {width} - 1] = nanoseconds;
}}
"""


def stamped(source: str, address: int) -> str:
    """The kernel's source, with stamps into a buffer of (CTAs, WIDTH) 64-bit values at `address`."""
    writer = _WRITER.format(address=address, width=WIDTH, last=NUM_STAMPS - 1)
    marked = _replace(source, _STATE, _STATE + writer)
    marked = _replace(marked, "".join(_BEGIN), "    stamp(state, 0);\n".join(_BEGIN))
    for index, (_, line) in enumerate(PARTS, 1):
        if line != _INPUT:
            marked = _replace(marked, line, f"{line}    stamp(state, {index});\n")
    return _replace(marked, _INPUT, f"{_INPUT}        if (range == first_range<L>()) stamp(state, 2 + 2 * L::KIND);\n")


def _replace(source: str, old: str, new: str) -> str:
    if source.count(old) != 1:
        raise ValueError(f"layer_fused.cu has {source.count(old)} times, not once: {old!r}")
    return source.replace(old, new)
