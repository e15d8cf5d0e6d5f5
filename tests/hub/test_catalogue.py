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
    with pytest.raises(ModelNotFound, match="no model named 'zzz'") as refused:
        catalogue.model("zzz")
    assert "Did you mean" not in refused.value.message


def test_adapters_are_in_the_package() -> None:
    path = adapter_path("some.safetensors")
    assert path.parent.name == "adapters"
    assert (path.parent.parent / "catalogue.json").is_file()
