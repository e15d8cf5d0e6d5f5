"""What fp8 costs in accuracy on real weights: the same text through the plain network, with fp8 weights, and with
activations rounded to fp8 as well, as the GPU's kernels round them where rows are few.

    python benchmarks/fp8_accuracy.py [--model coder-1.5b] [--tokens 384] TEXT ...

Plain torch in fp32, no GPU: the rounding is in the numbers, not in the kernels. Reports, over all positions, how far
the next token's distribution moves (KL from the plain network), how often the likeliest token stays, and perplexity.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from quicksilver.hub.resolve import resolve
from quicksilver.model.attention import DenseAttend
from quicksilver.model.transformer import Transformer
from quicksilver.model.weights import load_model
from quicksilver.text.tokenizer import Tokenizer

GROUPS = {"qkv": 128, "o": 128, "gate_up": 128, "down": 64}
"""Columns that share a step."""


def rounded(x: Tensor, group: int) -> Tensor:
    """x as fp8 with a step for each `group` columns stands for it."""
    wide = x.unflatten(-1, (-1, group))
    steps = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return ((wide / steps).to(torch.float8_e4m3fn).float() * steps).flatten(-2)


class RoundedInputs(nn.Module):
    def __init__(self, linear: nn.Module, group: int) -> None:
        super().__init__()
        self.linear, self.group = linear, group

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(rounded(x, self.group))


def round_weights(model: Transformer) -> None:
    """Every matrix in place, with a scale for each output. A tied head is its own copy then, as on the GPU."""
    for layer in model.layers:
        for name in GROUPS:
            weight = getattr(layer, name).weight
            weight.data = rounded(weight.data, weight.shape[1])
    head = nn.Linear(model.head.weight.shape[1], len(model.head.weight), bias=False)
    head.weight.data = rounded(model.head.weight.data, model.head.weight.shape[1])
    model.head = head


def round_inputs(model: Transformer) -> None:
    for layer in model.layers:
        for name, group in GROUPS.items():
            setattr(layer, name, RoundedInputs(getattr(layer, name), group))
    model.head = RoundedInputs(model.head, model.config.dim)


def log_probs(model: Transformer, token_ids: Tensor) -> Tensor:
    hidden = model(model.embed(token_ids), torch.arange(len(token_ids)), DenseAttend(1, is_causal=True))
    return torch.cat([model.head(part).log_softmax(-1) for part in hidden.split(64)])


def compare(found: Tensor, plain: Tensor, token_ids: Tensor) -> dict[str, float]:
    kl = (plain.exp() * (plain - found)).sum(-1)
    loss = -found[:-1].gather(1, token_ids[1:, None]).mean()
    same = (found.argmax(-1) == plain.argmax(-1)).float().mean()
    return {"kl": float(kl.mean()), "same_top_pct": 100 * float(same), "perplexity": float(loss.exp())}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--tokens", type=int, default=384, help="of each text")
    options = parser.parse_args()
    path = resolve(options.model).weights
    model, tokenizer = load_model(path, dtype=torch.float32, device="cpu"), Tokenizer.load(path)
    texts = [torch.tensor(tokenizer.encode(path.read_text())[: options.tokens]) for path in options.texts]
    plain = [log_probs(model, ids) for ids in texts]
    for name, change in (("plain", lambda _: None), ("fp8 weights", round_weights), ("and activations", round_inputs)):
        change(model)
        for text, before, ids in zip(options.texts, plain, texts, strict=True):
            row = compare(log_probs(model, ids), before, ids)
            print(
                f"{name:16} {text.name:24}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True
            )


if __name__ == "__main__":
    main()
