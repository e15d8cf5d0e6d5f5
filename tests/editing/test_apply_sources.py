"""The files of `benchmarks/apply_edits.py`: archives are downloaded once, and the sample depends on the paths alone."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from benchmarks import apply_sources
from benchmarks.apply_sources import NUM_FILES, REPOSITORIES, SUFFIXES, files_in, files_of, sample
from quicksilver.editing.languages import LANGUAGES

TEXT = "x = 1\n" * 100


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"name-commit/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_files_of_another_language_size_or_encoding_are_left_out(tmp_path: Path) -> None:
    files = {"src/a.py": TEXT.encode(), "b.rb": TEXT.encode(), "short.py": b"x = 1\n", "c.py": b"\xff" + TEXT.encode()}
    write_archive(tmp_path / "a.tar.gz", files)
    (found,) = files_of(tmp_path / "a.tar.gz", "python")
    assert (found.path, found.text, found.language) == ("src/a.py", TEXT, "python")


def test_a_sample_is_downloaded_once_and_has_equally_many_files_per_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_sources, "REPOSITORIES", {"one/a@1": "python", "two/b@2": "python", "three/c@3": "go"})
    monkeypatch.setattr(apply_sources, "URL", f"file://{tmp_path}/{{name}}/{{commit}}.tar.gz")
    for name in ("one/a/1", "two/b/2"):
        files = {f"{name}-{i}.py": TEXT.encode() for i in range(NUM_FILES)}
        write_archive(tmp_path / f"{name}.tar.gz", files)
    write_archive(tmp_path / "three/c/3.tar.gz", {"main.go": TEXT.encode()})
    found = sample(tmp_path / "archives")
    assert [file.language for file in found] == ["python"] * NUM_FILES + ["go"]
    assert {file.path[:3] for file in found} == {"one", "two", "mai"}
    monkeypatch.setattr(apply_sources, "URL", "file:///none")
    assert sample(tmp_path / "archives") == found


def test_a_folder_has_a_folder_per_language(tmp_path: Path) -> None:
    (tmp_path / "ruby").mkdir()
    (tmp_path / "ruby/a.rb").write_text("x")
    assert [(file.text, file.language) for file in files_in(tmp_path)] == [("x", "ruby")]


def test_every_language_of_the_repositories_is_known() -> None:
    assert set(REPOSITORIES.values()) == set(SUFFIXES) <= {language.name for language in LANGUAGES}
