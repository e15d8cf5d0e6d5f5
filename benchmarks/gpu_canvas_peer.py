"""A canvas of 256 in 16 steps at batch 1, compared with `generate` of DiffusionGemma in transformers: one GPU, one run.

    python -m benchmarks.gpu_canvas_peer --out DIR [--tokens 512] [--steps 16]

Both networks have random weights at a small shape with DiffusionGemma's ratios. The peer has eight experts and uses all
eight for every row, which is the work of a dense layer of that width; ours is that dense layer. Routing among 128
experts is not measured. Only the peer has self-conditioning, six norms per layer instead of two and a local window;
only ours has the canvas adapter. Rows, layers, widths, vocabulary and steps are the same. A step is one forward of the
canvas and its sampling, including the host; `ratio` compares steps, because our canvas slides.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.gpu_setup import DEVICE, PAGE_SIZE, make_backend, pages_for, random_model, write_report
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, Delta, Request, Usage
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.config import ModelConfig

PROMPT, CANVAS, EXPERTS = list(range(5, 261)), 256, 8
SHAPE = ModelConfig("qwen3", 12, 1024, 2816, 12, 6, 128, 98304, 8192, rope_theta=1e6, qk_norm=True, tied_head=True)


def peer_of(shape: ModelConfig, canvas_len: int) -> Any:
    """The peer network, with decoder and encoder tied; a dense part of 3/11 of the width, experts of 1/11. Its encoder
    requires a vision model, so it gets the smallest one, unused."""
    from transformers import (
        DiffusionGemmaConfig,
        DiffusionGemmaForBlockDiffusion,
        DiffusionGemmaTextConfig,
        Gemma4VisionConfig,
    )

    unit = shape.ffn_dim // 11
    text = DiffusionGemmaTextConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.dim, intermediate_size=3 * unit, moe_intermediate_size=unit,
        num_experts=EXPERTS, top_k_experts=EXPERTS, num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads, num_key_value_heads=shape.num_kv_heads, head_dim=shape.head_dim,
        global_head_dim=shape.head_dim, num_global_key_value_heads=shape.num_kv_heads, sliding_window=1024,
    )  # fmt: skip
    eyes = Gemma4VisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    config = DiffusionGemmaConfig(text_config=text, vision_config=eyes, canvas_length=canvas_len)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        peer = DiffusionGemmaForBlockDiffusion(config)
    return peer.to(torch.bfloat16).eval()


def their_step(peer: Any, count: int, steps: int) -> float:
    """Seconds per step of a whole answer; no canvas ends early."""
    prompt = torch.tensor([PROMPT], device=DEVICE)

    def generate(tokens: int, num_steps: int) -> Any:
        return peer.generate(
            prompt, max_new_tokens=tokens, max_denoising_steps=num_steps, confidence_threshold=1e-9, eos_token_id=None
        )

    generate(peer.config.canvas_length, 2)
    torch.cuda.synchronize()
    start = time.perf_counter()
    answer = generate(count, steps)
    torch.cuda.synchronize()
    num_canvases = (answer.sequences.shape[1] - len(PROMPT)) // peer.config.canvas_length
    return (time.perf_counter() - start) / (num_canvases * steps)


def make_engine(shape: ModelConfig, canvas_len: int) -> Engine:
    context_len = 4 * (len(PROMPT) + canvas_len)
    config = EngineConfig(
        num_pages=pages_for(4, context_len), page_size=PAGE_SIZE, context_len=context_len, cuda_graphs=False,
        max_rows=4 * canvas_len, max_canvas_len=canvas_len,
    )  # fmt: skip
    model = random_model(shape, rank=64)
    engine = build_engine(model, "random", config)
    limits = GraphLimits(max_rows=4 * canvas_len, max_segments=8, context_len=context_len)
    engine.backend = make_backend(model, config.num_pages, limits)
    return engine


def our_step(engine: Engine, count: int, decoder: DecoderParams) -> tuple[float, Usage]:
    usage: Usage | None = None
    for attempt in ("warm", "timed"):
        # Another first token, so that the prefix cache has no match.
        prompt = tuple(PROMPT) if attempt == "timed" else (4, *PROMPT[1:])
        torch.cuda.synchronize()
        start = time.perf_counter()
        engine.add(Request(attempt, prompt, DecodeParams(count, temperature=0.8, decoder=decoder)))
        while engine.has_work:
            for event in engine.step():
                assert isinstance(event, Delta)
                assert event.error is None, event.error
                usage = event.usage or usage
    assert usage is not None
    return (time.perf_counter() - start) / usage.forwards, usage


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokens", type=int, default=2 * CANVAS)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    row: dict[str, Any] = {"peer": "transformers DiffusionGemma generate"}
    try:
        theirs = their_step(peer_of(SHAPE, CANVAS), options.tokens, options.steps)
        torch.cuda.empty_cache()
        decoder = DecoderParams(DecoderName.CONFIDENCE, CANVAS, CommitRule.STATIC, steps=options.steps)
        with torch.inference_mode():
            ours, usage = our_step(make_engine(SHAPE, CANVAS), options.tokens, decoder)
        per_step = CANVAS / options.steps
        row |= {"peer_step_ms": 1e3 * theirs, "step_ms": 1e3 * ours, "ratio": theirs / ours}
        row |= {"peer_tok_per_s": per_step / theirs, "tok_per_s": per_step / ours}
        row |= {"our_forwards": usage.forwards, "our_tokens": usage.completion_tokens}
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
    settings = {"canvas": CANVAS, "steps": options.steps, "tokens": options.tokens, "prompt": len(PROMPT)}
    write_report(options.out, "gpu_canvas_peer", settings | {"transformers": transformers.__version__}, [row])


if __name__ == "__main__":
    main()
