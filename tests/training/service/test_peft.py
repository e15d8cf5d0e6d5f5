"""Adapters in the layout of PEFT: a round trip, adapters made elsewhere, and hostile archives."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.model.files.peft import CONFIG_FILE, WEIGHTS_FILE, projection_shapes
from quicksilver.training.lora import new_lora
from quicksilver.training.service.peft import from_peft, to_peft
from tests.support.tuning import CONFIG as MODEL

PLACE = "base_model.model.model.layers.0.self_attn.q_proj"


def trained(rank: int = 4) -> dict[str, Tensor]:
    torch.manual_seed(1)
    tensors = new_lora(MODEL, rank, 0, torch.device("cpu"))
    return {name: torch.randn_like(tensor).half().float() for name, tensor in tensors.items()}


def archive(described: Any, tensors: dict[str, Tensor] | bytes, **others: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(CONFIG_FILE, described if isinstance(described, str) else json.dumps(described))
        file.writestr(WEIGHTS_FILE, tensors if isinstance(tensors, bytes) else save(tensors))
        for name, body in others.items():
            file.writestr(name, body)
    return content.getvalue()


def described(**changes: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", **changes}


def pair(rank: int = 4, name: str = "q_proj", **changes: Tensor) -> dict[str, Tensor]:
    out, into = projection_shapes(MODEL)[name]
    place = PLACE.replace("q_proj", name)
    return {
        f"{place}.lora_A.weight": changes.get("a", torch.ones(rank, into)),
        f"{place}.lora_B.weight": changes.get("b", torch.ones(out, rank)),
    }


def test_an_export_is_read_back_exactly_and_always_has_the_same_bytes() -> None:
    tensors = trained()
    content = to_peft(tensors, MODEL, "toy")
    assert content == to_peft(tensors, MODEL, "toy")
    back = from_peft(content, MODEL)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_an_export_has_a_pair_for_every_linear_of_a_checkpoint() -> None:
    with zipfile.ZipFile(io.BytesIO(to_peft(trained(), MODEL, "toy"))) as file:
        assert file.namelist() == [CONFIG_FILE, WEIGHTS_FILE]
        assert json.loads(file.read(CONFIG_FILE))["r"] == 4
        from safetensors.torch import load

        assert len(load(file.read(WEIGHTS_FILE))) == MODEL.num_layers * 7 * 2


def test_an_adapter_of_some_linears_computes_what_peft_computes() -> None:
    """Different A for q and v, none for k: the fused product is that of each part, times alpha / r."""
    torch.manual_seed(2)
    dims = projection_shapes(MODEL)
    tensors = {}
    for name in ("q_proj", "v_proj"):
        tensors |= pair(name=name, a=torch.randn(4, dims[name][1]), b=torch.randn(dims[name][0], 4))
    found = from_peft(archive(described(), tensors), MODEL)
    product = found["0.qkv.B"] @ found["0.qkv.A"]
    q, k, v = product.split([dims[name][0] for name in ("q_proj", "k_proj", "v_proj")])
    for part, name in ((q, "q_proj"), (v, "v_proj")):
        place = PLACE.replace("q_proj", name)
        wanted = 2 * tensors[f"{place}.lora_B.weight"] @ tensors[f"{place}.lora_A.weight"]
        assert torch.allclose(part, wanted, atol=1e-5)
    assert not k.any()
    assert not (found["1.gu.B"] @ found["1.gu.A"]).any()


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank() -> None:
    found = from_peft(archive(described(use_rslora=True), pair()), MODEL)
    assert float((found["0.qkv.B"] @ found["0.qkv.A"])[0, 0]) == pytest.approx(4 * 8 / 2)


def bomb() -> bytes:
    return archive(described(), b"\0" * (20 << 20))


def lying_size() -> bytes:
    """The directory says that the weights are small."""
    content = bytearray(archive(described(), pair()))
    at = content.rfind(b"PK\x01\x02")
    content[at + 24 : at + 28] = (16).to_bytes(4, "little")
    return bytes(content)


def link() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        info = zipfile.ZipInfo(WEIGHTS_FILE)
        info.external_attr = 0o120777 << 16
        file.writestr(info, b"/etc/passwd")
        file.writestr(CONFIG_FILE, json.dumps(described()))
    return content.getvalue()


NAN = torch.full((4, MODEL.dim), float("nan"))
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a zip": (lambda: b"hello", "cannot be read"),
    "cut off": (lambda: archive(described(), pair())[:-30], "cannot be read"),
    "zip bomb": (bomb, "compressed more than|at most"),
    "size that lies": (lying_size, "another size|cannot be read"),
    "path outside": (lambda: archive(described(), pair(), **{"../../evil": b"x"}), "unexpected entry"),
    "absolute path": (lambda: archive(described(), pair(), **{"/etc/cron": b"x"}), "unexpected entry"),
    "pickle": (lambda: archive(described(), pair(), **{"adapter_model.bin": b"x"}), "unexpected entry"),
    "link": (link, "is a link"),
    "no weights": (lambda: archive(described(), {}), "no tensors"),
    "config that is no json": (lambda: archive("{", pair()), "not valid JSON"),
    "config that is no object": (lambda: archive("[1]", pair()), "not a JSON object"),
    "another kind": (lambda: archive(described(peft_type="IA3"), pair()), "peft_type"),
    "dora": (lambda: archive(described(use_dora=True), pair()), "use_dora"),
    "trained embeddings": (lambda: archive(described(modules_to_save=["embed_tokens"]), pair()), "modules_to_save"),
    "huge rank": (lambda: archive(described(r=100_000), pair()), "from 1 to 64"),
    "rank of a bool": (lambda: archive(described(r=True), pair()), "from 1 to 64"),
    "huge alpha": (lambda: archive(described(lora_alpha=1e9), pair()), "lora_alpha"),
    "infinite after scaling": (
        lambda: archive(described(r=1, lora_alpha=1024), pair(1, b=torch.full((MODEL.q_dim, 1), 1e3))),
        "lora_alpha / r",
    ),
    "wrong shape": (lambda: archive(described(), pair(a=torch.ones(4, 7))), "on this model is"),
    "wrong rank": (lambda: archive(described(), pair(rank=8)), "rank 4 on this model is"),
    "integers": (lambda: archive(described(), pair(a=torch.ones(4, MODEL.dim, dtype=torch.int32))), "not F32, F16"),
    "not a number": (lambda: archive(described(), pair(a=NAN)), "not finite"),
    "infinite": (lambda: archive(described(), pair(a=torch.full((4, MODEL.dim), 1e30))), "not finite|beyond"),
    "half a pair": (lambda: archive(described(), dict(list(pair().items())[:1])), "missing"),
    "another layer": (
        lambda: archive(described(), {k.replace("layers.0", "layers.99"): v for k, v in pair().items()}),
        "the model has",
    ),
    "another tensor": (lambda: archive(described(), {**pair(), "lm_head.weight": torch.ones(2)}), "not LoRA on"),
    "header that lies": (lambda: archive(described(), (2**60).to_bytes(8, "little") + b"{}"), "header of"),
    "header that is no json": (lambda: archive(described(), (2).to_bytes(8, "little") + b"{]"), "not valid JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_with_its_reason(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(InvalidRequest, match=reason) as refused:
        from_peft(make(), MODEL)
    assert refused.value.code == "invalid_adapter"
