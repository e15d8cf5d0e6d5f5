"""What the GPU's weights of few bits cost in accuracy: the same text through the plain network, with its weights
rounded, and, in fp8, with activations rounded as well, as kernels do where rows are few and layers six launches.

    python benchmarks/rounding.py [--weights fp8] [--model coder-1.5b] [--tokens 384] TEXT ...

Plain torch in fp32, no GPU: the rounding is in the numbers, not in the kernels. Reports, over all positions, how far
the next token's distribution moves (KL from the plain network), how often the likeliest token stays, and perplexity.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from quicksilver.backends.cuda.kernels.int4_packing import from_words, to_words
from quicksilver.hub.resolve import resolve
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from quicksilver.text.tokenizer import Tokenizer
from tests.support.dense_attend import DenseAttend

# Columns that share a scale.
GROUPS = {"qkv": 128, "o": 128, "gate_up": 128, "down": 64}


def rounded(x: Tensor, group: int) -> Tensor:
    """Round x to fp8 with one scale per `group` columns."""
    wide = x.unflatten(-1, (-1, group))
    steps = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return ((wide / steps).to(torch.float8_e4m3fn).float() * steps).flatten(-2)


class RoundedInputs(nn.Module):
    def __init__(self, linear: nn.Module, group: int) -> None:
        super().__init__()
        self.linear, self.group = linear, group

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(rounded(x, self.group))


def to_fp8(w: Tensor) -> Tensor:
    return rounded(w, w.shape[1])


def to_int4(w: Tensor) -> Tensor:
    return from_words(*to_words(w))


def round_weights(model: Transformer, change: Callable[[Tensor], Tensor]) -> None:
    """Round every matrix in place, the head in fp8. A tied head becomes a separate copy, as on the GPU."""
    for layer in model.layers:
        for name in GROUPS:
            weight = getattr(layer, name).weight
            weight.data = change(weight.data)
    head = nn.Linear(model.head.weight.shape[1], len(model.head.weight), bias=False)
    head.weight.data = to_fp8(model.head.weight.data)
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


# The rounding steps of each weight format, applied in order.
CHANGES: dict[str, dict[str, Callable[[Transformer], None]]] = {
    "fp8": {"fp8 weights": lambda model: round_weights(model, to_fp8), "and activations": round_inputs},
    "int4": {"int4 weights": lambda model: round_weights(model, to_int4)},
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--weights", choices=list(CHANGES), default="fp8")
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--tokens", type=int, default=384, help="of each text")
    options = parser.parse_args()
    path = resolve(options.model).weights
    model, tokenizer = load_model(path, dtype=torch.float32, device="cpu"), Tokenizer.load(path)
    texts = [torch.tensor(tokenizer.encode(path.read_text())[: options.tokens]) for path in options.texts]
    plain = [log_probs(model, ids) for ids in texts]
    tell("plain", model, plain, texts, options.texts)
    for name, change in CHANGES[options.weights].items():
        change(model)
        tell(name, model, plain, texts, options.texts)


def tell(name: str, model: Transformer, plain: list[Tensor], texts: list[Tensor], paths: list[Path]) -> None:
    for path, before, ids in zip(paths, plain, texts, strict=True):
        row = compare(log_probs(model, ids), before, ids)
        print(f"{name:16} {path.name:24}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
