"""`serve --adapter NAME=PATH`, and companions that share the base of their model."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.cli import serve_adapters
from quicksilver.cli.serve_adapters import adapter_model, runs_on_cpu, share_bases, split_adapters
from quicksilver.cli.serve_settings import ModelSettings
from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.hub.adapter_files import find_adapter
from quicksilver.hub.files import ModelFiles
from quicksilver.worker.program import WorkerConfig
from tests.support.row_adapters import random_adapter, saved


def settings_of(name: str, weights: str = "base.gguf", skill: Path | None = None) -> ModelSettings:
    return ModelSettings(ModelFiles(name, Path(weights), skill), WorkerConfig(name))


def test_entries_with_a_name_are_told_from_files(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.safetensors"
    odd.touch()
    own, named = split_adapters([Path("skill.safetensors"), Path("sql=x.safetensors"), odd, Path("./a=b")])
    assert own == [Path("skill.safetensors"), odd]
    assert named == {"sql": Path("x.safetensors"), "a": Path("b")}
    with pytest.raises(InvalidRequest, match="two files"):
        split_adapters([Path("sql=x"), Path("sql=y")])


def test_an_adapter_is_a_model_on_the_worker_of_its_base(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, random_adapter(1)).path)
    models = [settings_of("nano"), settings_of("coder", "other.gguf")]
    first, second = (adapter_model(name, path, models) for name in ("sql", "coder:sql"))
    assert (first.files.name, first.base, first.files.weights) == ("nano:sql", "nano", Path("base.gguf"))
    assert (second.files.name, second.base, second.files.weights) == ("coder:sql", "coder", Path("other.gguf"))
    assert first.adapter == find_adapter(path)
    assert first.files.skill is None


def test_an_adapter_with_tokens_of_its_own_has_the_roles_of_a_skill(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, random_adapter(1, embedding_ids=(4,))).path)
    assert adapter_model("sql", path, [settings_of("nano")]).files.skill == path


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("other:sql", InvalidRequest, "other is not served"),
        ("a b", InvalidRequest, "adapter name"),
        (":", InvalidRequest, "not served"),
        ("sql", CheckpointRefused, "missing"),
    ],
)
def test_names_and_files_that_cannot_be_served_are_refused(name: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        adapter_model(name, Path("none.safetensors"), [settings_of("nano")])


def test_a_companion_shares_the_base_on_a_cpu_only(tmp_path: Path) -> None:
    skill = Path(saved(tmp_path, random_adapter(1, embedding_ids=(4,))).path)
    models = (settings_of("coder"), settings_of("coder-edit", skill=skill))
    names = {"coder": "coder-edit"}
    base, companion = share_bases(models, names, "cpu")
    assert base == models[0]
    assert (companion.files.name, companion.base, companion.adapter) == ("coder-edit", "coder", find_adapter(skill))
    assert companion.is_companion
    assert companion.files.skill == skill, "its tokenizer has the roles of the skill"
    assert share_bases(models, names, "cuda") == models


def test_a_companion_of_a_changed_base_keeps_a_worker_of_its_own(tmp_path: Path) -> None:
    skill = Path(saved(tmp_path, random_adapter(1)).path)
    companion = settings_of("coder-edit", skill=skill)
    for base in (settings_of("coder", skill=skill), settings_of("coder", "other.gguf")):
        assert share_bases((base, companion), {"coder": "coder-edit"}, "cpu") == (base, companion)


def test_an_accelerator_device_file_decides_for_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_adapters, "ACCELERATORS", (str(tmp_path / "nvidiactl"),))
    assert runs_on_cpu("auto")
    (tmp_path / "nvidiactl").touch()
    assert [runs_on_cpu(device) for device in ("auto", "cpu", "cuda")] == [False, True, False]
