"""The catalogue: complete entries, and errors that name alternatives."""

from __future__ import annotations

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import adapter_path, load_catalogue


def test_the_catalogue_names_every_part_with_a_hash() -> None:
    catalogue = load_catalogue()
    for base in catalogue.bases.values():
        assert len(base.sha256) == 64
        assert all(len(part.sha256) == 64 and part.bytes > 0 for part in base.parts)
    assert {model.base for model in catalogue.models.values()} <= set(catalogue.bases)
    assert len(catalogue.bases["qwen2.5-coder-1.5b-instruct"].parts) == 22


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_names() -> None:
    catalogue = load_catalogue()
    with pytest.raises(ModelNotFound, match="Did you mean 'smollm2-135m'") as refused:
        catalogue.model("smolm2-135m")
    assert all(name in refused.value.message for name in catalogue.models)
    with pytest.raises(ModelNotFound, match="no model, folder or file named 'zzz'") as refused:
        catalogue.model("zzz")
    assert "Did you mean" not in refused.value.message


def test_adapters_are_in_the_package() -> None:
    path = adapter_path("some.safetensors")
    assert path.parent.name == "adapters"
    assert (path.parent.parent / "catalogue.json").is_file()


def test_adapters_of_all_models_are_shipped_within_the_size_limit() -> None:
    models = load_catalogue().models.values()
    files = {file for model in models for file in (model.skill, model.canvas) if file}
    assert sum(adapter_path(file).stat().st_size for file in files) <= 90_000_000


def test_the_edit_model_is_the_coder_with_a_skill_adapter() -> None:
    coder, edit = load_catalogue().model("coder-1.5b"), load_catalogue().model("coder-1.5b-edit")
    assert (edit.base, edit.canvas) == (coder.base, coder.canvas)
    assert coder.skill is None
    assert edit.skill is not None


def test_the_name_of_a_tuned_model_says_where_it_is_used() -> None:
    with pytest.raises(ModelNotFound, match="quicksilver serve"):
        load_catalogue().model("ft:nano:support:1")
