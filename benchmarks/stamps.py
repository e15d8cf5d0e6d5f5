"""Clock stamps for `layer_fused.cu`: its source with a line between any two parts of a layer that writes down the time.

Needs no GPU; `gpu_clocks.py` compiles and runs what comes out.
"""

from __future__ import annotations

_INPUT = "        else read_input(x, me, input, begin);\n"
"""Behind it a warp has its part of an input, of whichever linear."""
PARTS = (
    ("merge", "    sync_mergers();\n"),
    ("output, input", _INPUT),
    ("output", "        multiply_linear<Output>(me, me.args.attended);\n"),
    ("gate and up, input", _INPUT),
    ("gate and up", "        multiply_linear<GateUp>(me, me.args.middle);\n"),
    ("down, input", _INPUT),
    ("down", "        multiply_linear<Down>(me, me.args.ffn);\n"),
    ("qkv, input", _INPUT),
    ("qkv", "    if (me.args.has_qkv) multiply_linear<Qkv>(me, me.args.scaled);\n"),
)
"""What the first multiplying thread of a program does, and the line that ends it. The time of an input is that of the
reading, and before it of the programs that still make it."""
NUM_STAMPS = 1 + len(PARTS)
WIDTH = NUM_STAMPS + 2
"""Numbers of a program: its stamps, and the nanoseconds at the first and at the last."""

_BEGIN = ("    wait_turn();\n", "    for (; at < ROWS * HEADS; at += PROGRAMS * MERGING) {\n")
"""Where a program has waited for attention, and merges."""
_WORKER = "    int used;  // pieces of weights\n};\n"
_WRITER = """
DEVICE void stamp(const Worker &me, int index) {{
    if (me.thread != 0 || !me.args.has_layer || !me.args.has_qkv) return;
    long long *mine = (long long *){address}ULL + program_index() * {width}, nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    mine[index] = clock64();
    if (index == 0 || index == {last}) mine[index == 0 ? {width} - 2 : {width} - 1] = nanoseconds;
}}
"""


def stamped(source: str, address: int) -> str:
    """The kernel's source, with stamps into a buffer of (programs, WIDTH) numbers of 64 bits at `address`."""
    writer = _WRITER.format(address=address, width=WIDTH, last=NUM_STAMPS - 1)
    marked = _replace(source, _WORKER, _WORKER + writer)
    marked = _replace(marked, "".join(_BEGIN), "    stamp(me, 0);\n".join(_BEGIN))
    for index, (_, line) in enumerate(PARTS, 1):
        if line != _INPUT:
            marked = _replace(marked, line, f"{line}    stamp(me, {index});\n")
    return _replace(marked, _INPUT, f"{_INPUT}        if (range == first_range<L>()) stamp(me, 2 + 2 * L::KIND);\n")


def _replace(source: str, old: str, new: str) -> str:
    if source.count(old) != 1:
        raise ValueError(f"layer_fused.cu has {source.count(old)} times, not once: {old!r}")
    return source.replace(old, new)
