from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.cluster.ray.config import ClusterConfig, ClusterModel, app_name
from quicksilver.errors import InvalidRequest


def write(path: Path, text: str) -> Path:
    file = path / "cluster.toml"
    file.write_text(text)
    return file


def test_a_file_names_models_and_replicas(tmp_path: Path) -> None:
    file = write(tmp_path, 'address = "10.0.0.1:6379"\n[[models]]\nmodel = "nano"\nmax_replicas = 3\nnum_cpus = 2\n')
    found = ClusterConfig.read(file)
    assert found == ClusterConfig((ClusterModel("nano", max_replicas=3, num_cpus=2.0),), "10.0.0.1:6379")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models = []",
        "not toml",
        '[[models]]\nmodel = "a"\nmin_replicas = 2\nmax_replicas = 1',
        '[[models]]\nmodel = "a"\nmin_replicas = 0',
        '[[models]]\nmodel = "a"\nmax_open = 0',
        '[[models]]\nmodel = "a"\n[[models]]\nmodel = "a"',
        '[[models]]\nmodel = "a"\nreplicas = 3',
        "[[models]]\nmodel = 3",
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cluster\.toml"):
        ClusterConfig.read(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        ClusterConfig.read(tmp_path / "missing.toml")


def test_names_of_applications_have_no_slash() -> None:
    assert app_name("owner/model@v1.0") == "engine-owner-model-v1.0"
