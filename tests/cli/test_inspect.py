"""`quicksilver inspect`: a description of real weights, and of a repository on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.cli.inspect import facts, memory_table
from quicksilver.hub.resolve import ModelFiles
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.inspect import describe_config
from tests.model.build import random_model, small_config
from tests.support.command import quicksilver
from tests.support.dialects import DIALECTS
from tests.support.hub_server import serve_hub
from tests.support.saved_model import hf_config, save_model
from tests.support.weights import MODEL, nano


def test_inspect_describes_real_weights() -> None:
    nano()
    shown = quicksilver("inspect", MODEL).stdout
    assert "llama" in shown
    assert "49152" in shown.replace(",", "")
    assert "parameters  134.5 million" in shown
    assert "Memory for one request with the full context of 8,192 tokens" in shown
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    plan = {cells[1].strip(): [float(cell.split()[0]) for cell in cells[2:]] for cells in rows}
    assert set(plan) == {"int8", "bfloat16", "float32", "fp8", "int4"}
    assert all(abs(weights + kv - together) <= 0.011 for weights, kv, together, _ in plan.values())
    assert "KV per token  22.5 KiB, with float32 weights 45.0 KiB" in shown
    assert "ModelConfig(" not in shown
    assert max(len(line) for line in shown.splitlines() if "│" in line) <= 80


def test_inspect_describes_a_hub_repository_from_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(random_model(small_config("sdar")), tmp_path / "folder")
    files = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with serve_hub({"lab/SDAR-tiny": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        shown = quicksilver("inspect", "lab/SDAR-tiny", home=tmp_path / "home").stdout
        assert hub.fetched == {"config.json"}
        refused = {**files, "config.json": files["config.json"].replace(b"SDARForCausalLM", b"NewDiffusionLM")}
        hub.repos["lab/New"] = refused
        answer = quicksilver("pull", "lab/New", home=tmp_path / "home")
        assert "model.safetensors" not in hub.fetched
    assert "sdar" in shown
    assert "block context, blocks of 4; a masked row predicts its own position" in " ".join(shown.split())
    assert "confidence, edit (default confidence)" in " ".join(shown.split())
    assert answer.returncode == 2
    assert "NewDiffusionLM" in answer.stderr
    assert "LLaDA2MoeModelLM" in " ".join(answer.stderr.split())


def test_only_embeddings_and_head_stay_in_16_bits_on_a_gpu(tmp_path: Path) -> None:
    config = small_config("llama", num_layers=16)
    summary = describe_config(config, tmp_path, 1000)
    after, peak, half = summary.weight_bytes, summary.loading_bytes, summary.weight_bytes["bfloat16"]
    assert after["int4"] < after["fp8"] < half
    assert half < peak["int4"] < peak["fp8"] < 2 * half
    assert all(after[name] == peak[name] for name in ("float32", "bfloat16", "int8"))
    columns = {column.header: list(column.cells) for column in memory_table(summary, 0).columns}
    together = dict(zip(columns["--weights"], columns["together"], strict=True))
    assert together["int4"] == f"{after['int4'] / 1e9:.2f} GB"
    at_load = dict(zip(columns["--weights"], columns["at load"], strict=True))
    assert at_load["fp8"] == f"{peak['fp8'] / 1e9:.2f} GB"


@pytest.mark.parametrize("family", DIALECTS)
def test_a_config_of_every_diffusion_family_is_described(family: str, tmp_path: Path) -> None:
    config = ModelConfig.from_hf(hf_config(small_config(family)), family)
    summary = describe_config(config, tmp_path, 1000)
    shown = facts(ModelFiles(family, tmp_path), summary)
    assert shown["family"] == family
    assert shown["decoders"].endswith(f"(default {config.dialect.default.name})")
    assert "autoregressive" not in shown["dialect"]
    per_token = f"{config.kv_bytes_per_token(2) / 1024:,.1f} KiB, with float32"
    assert shown["KV per token"].startswith(per_token if config.dialect.keeps_kv else "none")
    assert summary.num_params == sum(parameter.numel() for parameter in random_model(config).parameters())
    num_rounded = config.is_plain + config.fits_cuda_kernels + config.fits_int4_kernels
    assert memory_table(summary, 100).row_count == 3 + num_rounded


def test_the_published_config_of_diffusiongemma_is_described(tmp_path: Path) -> None:
    text = {
        "vocab_size": 262_144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 2, "sliding_window": 1024, "max_position_embeddings": 262_144,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision",
    }  # fmt: skip
    config = ModelConfig.from_hf({
        "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "text_config": text,
        "vision_config": {"model_type": "gemma4_vision"}, "canvas_length": 256,
    })  # fmt: skip
    assert config.gemma is not None
    assert sum(config.gemma.is_full) == 5
    assert 25e9 < config.num_params < 27e9
    shown = facts(ModelFiles("gemma", tmp_path), describe_config(config, tmp_path, 52_000_000_000))
    assert shown["dialect"] == "causal context; a canvas of 256 random tokens, denoised in steps"
    assert shown["decoders"] == "canvas (default canvas)"
