"""Our forward of a GGUF file against transformers' on the same dequantised weights, both float32; then the CPU's number
formats against that.

    python -m benchmarks.parity [--model coder-1.5b]

Twenty prompts: the largest difference of the last token's logits, and whether every position has the same best token.
One model is in memory at a time (a 1.5B model takes 6.2 GB, and as much disk). Writes dated JSON into the folder given.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cpu_decode import ROOT, commit
from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.load_packed import PackTensors
from quicksilver.hub.resolve import ModelFiles, resolve
from quicksilver.model.files.checkpoint import build, load_model, open_source
from quicksilver.model.transformer import Transformer
from quicksilver.text.tokenizer import Tokenizer
from tests.support.dense_attend import DenseAttend
from tests.support.quantised import quantise_model
from tests.support.saved_model import save_model

PROMPTS = (
    "def fibonacci(n: int) -> list[int]:\n    ", "import numpy as np\n\ndef normalise(x):\n",
    "class Stack:\n    def __init__", "SELECT name, count(*) FROM orders WHERE",
    "fn main() {\n    let mut total = 0;\n    for i in", "#include <stdio.h>\n\nint main(",
    "const add = (a, b) =>", "<html>\n<head>\n<title>", '{"name": "Ada", "born": 1815, "known_for": [',
    "The capital of France is", "# Sorts a list in place by insertion.\ndef insertion_sort(items):\n",
    "for i in range(10):\n    if i % 2 ==", "Once upon a time", "try:\n    value = int(text)\nexcept",
    "func (s *Server) Handle(w http.ResponseWriter,", "git commit -m", "The three primary colours are",
    "def is_palindrome(text: str) -> bool:\n    text = ''.join(", "public static void main(String[]",
    "To reverse a linked list, keep three",
)  # fmt: skip
Predict = Callable[[Tensor], Tensor]


def ours(model: Transformer) -> Predict:
    def predict(ids: Tensor) -> Tensor:
        hidden = model(model.embed(ids), torch.arange(len(ids)), DenseAttend(1, is_causal=True))
        return model.logits(hidden)

    return predict


def theirs(folder: Path) -> Predict:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda ids: model(ids[None]).logits[0]


@torch.inference_mode()
def logits_of(predict: Predict, prompts: list[Tensor]) -> list[Tensor]:
    return [predict(ids).float() for ids in prompts]


def divergence(found: list[Tensor], wanted: list[Tensor]) -> dict[str, float]:
    """How far a number format is from float32, over all positions."""
    p, q = (torch.cat(parts).log_softmax(-1) for parts in (wanted, found))
    kl = (p.exp() * (p - q)).sum(-1).mean()
    same = (p.argmax(-1) == q.argmax(-1)).float().mean()
    return {"kl_nats": round(float(kl), 5), "same_best_token": round(float(same), 4)}


def dense_and_theirs(checkpoint: ModelFiles, prompts: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(checkpoint.weights)
        wanted = logits_of(ours(model), prompts)
        save_model(model, folder)
        del model
        gc.collect()
        found = logits_of(theirs(Path(folder)), prompts)
    gc.collect()
    return wanted, found


def formats(checkpoint: ModelFiles, prompts: list[Tensor], wanted: list[Tensor]) -> dict[str, dict[str, float]]:
    source = open_source(checkpoint.weights)
    packed = build(source, torch.float32, "cpu", PackTensors(None, source))
    linears = [module for module in packed.modules() if isinstance(module, PackedLinear)]
    share = sum(m.out_dim * m.in_dim for m in linears if m.bits == 4) / sum(m.out_dim * m.in_dim for m in linears)
    kept = divergence(logits_of(ours(packed), prompts), wanted) | {"share_of_weights_in_four_bits": round(share, 3)}
    del packed, linears
    gc.collect()
    rounded = quantise_model(load_model(checkpoint.weights))
    return {"as loaded": kept, "all int8": divergence(logits_of(ours(rounded), prompts), wanted)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--model", default="coder-1.5b")
    words.add_argument("--out", type=Path, default=ROOT / "results")
    args = words.parse_args()
    checkpoint = resolve(args.model)
    tokenizer = Tokenizer.load(checkpoint.weights)
    prompts = [torch.tensor(tokenizer.encode(text)) for text in PROMPTS]
    wanted, found = dense_and_theirs(checkpoint, prompts)
    pairs = list(zip(wanted, found, strict=True))
    summary = {
        "model": args.model,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "torch": torch.__version__,
        "prompts": len(prompts),
        "positions": sum(len(ids) for ids in prompts),
        "largest_last_token_difference": max(float((a[-1] - b[-1]).abs().max()) for a, b in pairs),
        "largest_difference": max(float((a - b).abs().max()) for a, b in pairs),
        "largest_logit": max(float(b.abs().max()) for b in found),
        "same_best_token_everywhere": all(bool((a.argmax(-1) == b.argmax(-1)).all()) for a, b in pairs),
    }
    print(json.dumps(summary, indent=1), flush=True)
    summary["formats"] = formats(checkpoint, prompts, wanted)
    path = args.out / f"parity-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary["formats"], indent=1), path)


if __name__ == "__main__":
    main()
