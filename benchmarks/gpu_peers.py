"""Autoregression at batch 1, compared with `generate` of transformers: one GPU, the same random weights, one run.

    python -m benchmarks.gpu_peers --out DIR [--models 135M,1.5B] [--tokens 128]

Both are greedy in bf16 with stop tokens banned. The report includes the number of equal tokens: with random weights a
difference in the last bits changes all later tokens, so it shows where the answers diverge, not which one is right.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch

from benchmarks.gpu_setup import SHAPES, write_report
from benchmarks.gpu_verify import make_engine
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.engine.engine import Engine
from quicksilver.model.files.checkpoint import load_model

PROMPT = list(range(5, 261))


def peer_of(name: str) -> Any:
    """The peer network at our shape, with its own random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape = SHAPES[name]
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    make_config, make_model = kinds[shape.family]
    config = make_config(
        vocab_size=shape.vocab_size, hidden_size=shape.dim, intermediate_size=shape.ffn_dim,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return make_model(config).to(torch.bfloat16).eval()


def their_seconds(peer: Any, count: int) -> tuple[float, list[int]]:
    prompt = torch.tensor([PROMPT], device="cuda")

    def generate(tokens: int) -> Any:
        return peer.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=tokens,
            max_new_tokens=tokens,
        )  # fmt: skip

    generate(8)
    torch.cuda.synchronize()
    start = time.perf_counter()
    answer = generate(count)[0, len(PROMPT) :].tolist()
    return time.perf_counter() - start, answer


def our_seconds(engine: Engine, count: int) -> tuple[float, list[int]]:
    """A whole request through the engine, including the prompt, as for the peer."""
    params = DecodeParams(count, decoder=DecoderParams(DecoderName.AR, 1))
    for attempt in ("warm", "timed"):
        answer: list[int] = []
        torch.cuda.synchronize()
        start = time.perf_counter()
        # Another first token, so that the prefix cache has no match.
        prompt = tuple(PROMPT) if attempt == "timed" else (4, *PROMPT[1:])
        engine.add(Request(attempt, prompt, params))
        while engine.has_work:
            for event in engine.step():
                answer += event.token_ids if isinstance(event, Delta) else ()
    return time.perf_counter() - start, answer


def measure(name: str, count: int) -> dict[str, Any]:
    peer = peer_of(name)
    theirs, their_text = their_seconds(peer, count)
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = load_model(folder, dtype=torch.bfloat16, device="cuda")
    del peer
    with torch.inference_mode():
        ours, our_text = our_seconds(make_engine(model, [], 2048), count)
    same = next((i for i, (a, b) in enumerate(zip(our_text, their_text, strict=False)) if a != b), len(our_text))
    row: dict[str, Any] = {"model": name, "peer": "transformers generate", "peer_tok_per_s": count / theirs}
    return row | {"tok_per_s": count / ours, "ratio": theirs / ours, "equal_tokens": same, "tokens": len(our_text)}


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="135M,1.5B")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        try:
            rows.append(measure(name, options.tokens))
        except Exception as error:
            rows.append({"model": name, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(rows[-1], flush=True)
    settings = {"tokens": options.tokens, "prompt": len(PROMPT), "transformers": transformers.__version__}
    write_report(options.out, "gpu_peers", settings, rows)


if __name__ == "__main__":
    main()
