"""DiffusionGemma against its class in transformers: logits, and `generate` token for token with the same noise.

Checkpoints are written by transformers and read here, so the tensor names are those of the published files.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quicksilver.core import Request
from quicksilver.diffusion.sample import gumbel, random_tokens
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.gemma import DiffusionGemma
from tests.support.dense_attend import dense_gemma
from tests.support.tiny import answers, decode_params, finish_all

pytestmark = pytest.mark.parity

FAMILY = "diffusion-gemma"
VOCAB, CANVAS, WINDOW, SEED = 99, 16, 9, 7


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Three layers: two with a window, one without. Weights at a scale at which 1e-5 measures rounding only."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig

    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], max_position_embeddings=512,
        num_experts=4, top_k_experts=2, moe_intermediate_size=24, attn_implementation="eager",
    )  # fmt: skip
    config = DiffusionGemmaConfig(text_config=text, vision_config=None, canvas_length=CANVAS)
    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        for name, tensor in model.model.decoder.state_dict().items():
            _randomise(name, tensor)
        # Feedback that shrinks differences from step to step: with more, rounding would decide after a few steps.
        model.model.decoder.self_conditioning.down_proj.weight.mul_(0.05)
        model.model.decoder.norm.weight.mul_(0.5)
        for layer in model.model.encoder.language_model.layers:
            layer.layer_scalar.uniform_(0.5, 1.5)
    model.tie_weights()
    return model


def _randomise(name: str, tensor: Tensor) -> None:
    if name.endswith(("layer_scalar", "scale", "norm.weight")) or "layernorm" in name:
        tensor.uniform_(0.5, 1.5)
    elif tensor.dim() > 1:
        tensor.normal_(std=0.15)


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma") / "diffusiongemma-tiny"
    theirs.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> DiffusionGemma:
    model = load_model(folder)
    assert isinstance(model, DiffusionGemma)
    assert model.config.family == FAMILY
    return model


def ids(num: int, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCAB, (num,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def our_logits(model: DiffusionGemma, context: Tensor, canvas: Tensor, soft: Tensor) -> Tensor:
    tokens, num_context = torch.cat((context, canvas)), len(context)
    is_canvas = torch.arange(len(tokens)) >= num_context
    x = model.condition(model.embed(tokens), is_canvas, soft)
    attend = dense_gemma(model, num_context, len(canvas))
    return model.logits(model(x, torch.arange(len(tokens)), attend, is_canvas)[num_context:])


@pytest.mark.parametrize("num_context", [1, WINDOW - 1, WINDOW, 40])
@torch.inference_mode()
def test_logits_of_a_canvas_equal_those_of_transformers(theirs: Any, ours: DiffusionGemma, num_context: int) -> None:
    context, canvas = ids(num_context), ids(CANVAS, seed=2)
    before = torch.randn(CANVAS, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    for conditioning in (None, before):
        found = theirs(
            input_ids=context[None],
            decoder_input_ids=canvas[None],
            self_conditioning_logits=None if conditioning is None else conditioning[None],
        ).logits[0]
        soft = torch.zeros(CANVAS, 32) if conditioning is None else ours.soft_embedding(conditioning)
        torch.testing.assert_close(our_logits(ours, context, canvas, soft), found, rtol=0, atol=1e-5)


class Tape:
    """Replaces the random numbers of `generate` by ours: keyed by seed, position and step."""

    def __init__(self, model: Any, num_prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSampler

        self.start, self.step = num_prompt - CANVAS, 0
        prepare = model._prepare_denoiser_inputs

        def begin(**fields: Any) -> Any:
            self.start, self.step = self.start + CANVAS, 0
            return prepare(**fields)

        monkeypatch.setattr(model, "_prepare_denoiser_inputs", begin)
        monkeypatch.setattr(EntropyBoundSampler, "initialize_canvas", lambda *args, **fields: self.noise())
        monkeypatch.setattr(torch, "multinomial", self.multinomial)
        # A hint for CUDA graphs, which would import torch's compiler.
        monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.start, self.start + CANVAS)

    def noise(self) -> Tensor:
        """The random canvas of a step; it is drawn once before the first step and once in every step."""
        found = random_tokens(SEED, self.positions, self.step, VOCAB)
        self.step += 1
        return found[None]

    def multinomial(self, p: Tensor, num_samples: int) -> Tensor:
        positions = self.positions
        noise = gumbel(torch.full_like(positions, SEED), positions, torch.full_like(positions, self.step - 1), VOCAB)
        return (p.log() + noise).argmax(-1, keepdim=True)


@dataclass(frozen=True)
class Rule:
    """Options of a run, in their names and in ours."""

    steps: int
    entropy_bound: float
    stop_entropy: float


RULES = {
    "fixed steps": Rule(6, 0.1, 1e-9),
    "many accepted": Rule(8, 3.0, 1e-9),
    "adaptive stop": Rule(24, 9.0, 2.0),
}


@pytest.fixture(scope="module")
def sharp(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, DiffusionGemma]:
    """The same networks with larger logits: some distributions are nearly certain, so canvases settle."""
    path, certain = tmp_path_factory.mktemp("sharp"), copy.deepcopy(theirs)
    with torch.no_grad():
        certain.model.decoder.norm.weight.mul_(10.0)
    certain.tie_weights()
    certain.save_pretrained(path)
    model = load_model(path)
    assert isinstance(model, DiffusionGemma)
    return certain, model


@pytest.mark.parametrize("num_prompt", [1, CANVAS - 1, CANVAS, 21])
@pytest.mark.parametrize("label", RULES)
def test_generate_equals_that_of_transformers_token_for_token(
    sharp: tuple[Any, DiffusionGemma], label: str, num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as native

    theirs, ours = sharp
    rule, prompt = RULES[label], ids(num_prompt, seed=5)
    config = native.DiffusionGemmaGenerationConfig(
        max_new_tokens=3 * CANVAS,
        max_denoising_steps=rule.steps,
        sampler_config=native.EntropyBoundSamplerConfig(entropy_bound=rule.entropy_bound),
        t_min=0.4,
        t_max=0.8,
        stability_threshold=1,
        confidence_threshold=rule.stop_entropy,
    )
    tape = Tape(theirs, num_prompt, monkeypatch)
    wanted = theirs.generate(prompt[None], generation_config=config)
    params = decode_params(
        "canvas", canvas_len=CANVAS, steps=rule.steps, entropy_bound=rule.entropy_bound,
        stop_entropy=rule.stop_entropy, temperature=1.0, seed=SEED, max_new_tokens=3 * CANVAS,
    )  # fmt: skip
    engine = build_engine(ours, "tiny", EngineConfig(num_pages=16, max_rows=96))
    engine.add(Request("x", tuple(prompt.tolist()), params))
    deltas = finish_all(engine)
    assert answers(deltas)["x"] == wanted.sequences[0, num_prompt:].tolist()
    usage = deltas["x"][-1].usage
    assert usage is not None
    num_steps = round(3 * CANVAS / float(wanted.tokens_per_forward))
    assert usage.forwards == num_steps
    assert (num_steps < 3 * rule.steps) is (label == "adaptive stop")
    assert tape.start == num_prompt + 2 * CANVAS


def test_the_sizes_of_the_config_are_those_of_the_weights(theirs: Any, ours: DiffusionGemma) -> None:
    assert ours.config.num_params == sum(p.numel() for p in ours.parameters())
    assert ours.config.dialect.default.canvas_len == CANVAS
    assert ours.config.dialect.noise_vocab == VOCAB


def test_a_file_with_the_encoders_copy_of_the_weights_is_read_too(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    decoder, encoder = "model.decoder.", "model.encoder.language_model."
    moved = {
        name.replace(decoder, encoder) if name.startswith(decoder) and not _is_decoders_own(name) else name: tensor
        for name, tensor in tensors.items()
    }
    assert moved.keys() != tensors.keys()
    moved["model.encoder.vision_tower.patch.weight"] = torch.zeros(2, 2)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(moved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    first, second = load_model(folder), load_model(tmp_path)
    for (name, one), (_, other) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def _is_decoders_own(name: str) -> bool:
    return "self_conditioning" in name or name.endswith("layer_scalar")


def test_a_file_without_a_scalar_of_a_layer_is_refused(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.encoder.language_model.layers.1.layer_scalar"]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointRefused, match=r"layers\.1\.layer_scalar is missing"):
        load_model(tmp_path)


def test_a_context_cannot_be_extended(ours: DiffusionGemma) -> None:
    with pytest.raises(CheckpointRefused, match="cannot be extended"):
        replace(ours.config).with_yarn(2.0)
