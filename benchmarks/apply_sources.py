"""Source files for `apply_edits.py`: a folder of the caller, or a sample of the repositories of the published result.

The archives of the repositories are downloaded once, into .build/apply_edits. The published result is from 237 files of
the same commits, whose names were not recorded; the sample has as many files per language.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ARCHIVES = Path(__file__).parents[1] / ".build" / "apply_edits"
URL = "https://github.com/{name}/archive/{commit}.tar.gz"
# Of each language: the number of files, and their lines.
NUM_FILES, NUM_LINES = 17, range(40, 1501)
REPOSITORIES = {
    "aio-libs/aiohttp@495e778360d1": "python",
    "google/guice@621416a24089": "java",
    "google/re2@972a15cedd00": "cpp",
    "composer/composer@eba7baa59eb1": "php",
    "apple/swift-log@7af2de138f5f": "swift",
    "ReactiveX/RxSwift@5abdfe46cc21": "swift",
    "coil-kt/coil@a42b77096006": "kotlin",
    "mantinedev/mantine@8a284e2c2c53": "tsx",
    "socketio/socket.io@d2d753fed443": "typescript",
    "stretchr/testify@12f8b5612e12": "go",
    "rust-lang/regex@2b527599eb9e": "rust",
    "autofac/Autofac@b7f65d61fcd6": "csharp",
    "puma/puma@ff2e2126ee2f": "ruby",
    "mochajs/mocha@e6b9ee773481": "javascript",
    "curl/curl@5c61e168698a": "c",
}
SUFFIXES = {
    "python": (".py",), "java": (".java",), "cpp": (".cc", ".h"), "php": (".php",), "swift": (".swift",),
    "kotlin": (".kt",), "tsx": (".tsx",), "typescript": (".ts",), "go": (".go",), "rust": (".rs",),
    "csharp": (".cs",), "ruby": (".rb",), "javascript": (".js",), "c": (".c",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    path: str
    text: str
    language: str

    @property
    def order(self) -> bytes:
        """The place in the sample, which depends on the path alone."""
        return hashlib.sha256(self.path.encode()).digest()


def files_in(folder: Path) -> list[Source]:
    """The files of a folder that has a folder per language."""
    paths = sorted(path for path in folder.glob("*/*") if path.is_file())
    return [Source(str(path), path.read_text(), path.parent.name) for path in paths]


def sample(archives: Path = ARCHIVES) -> list[Source]:
    """The same number of files of each language."""
    found: dict[str, list[Source]] = {language: [] for language in SUFFIXES}
    for repository, language in REPOSITORIES.items():
        found[language] += files_of(archive(repository, archives), language)
    return [file for files in found.values() for file in sorted(files, key=lambda file: file.order)[:NUM_FILES]]


def archive(repository: str, folder: Path) -> Path:
    """The archive of OWNER/NAME@COMMIT, downloaded if it is missing."""
    name, _, commit = repository.partition("@")
    path = folder / f"{name.replace('/', '+')}-{commit}.tar.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with urllib.request.urlopen(URL.format(name=name, commit=commit), timeout=60) as reply, part.open("wb") as file:
            shutil.copyfileobj(reply, file)
        part.rename(path)
    return path


def files_of(path: Path, language: str) -> Iterator[Source]:
    """The files of a language in an archive that are neither very short nor very long."""
    with tarfile.open(path) as archived:
        for member in archived:
            if member.isfile() and PurePosixPath(member.name).suffix in SUFFIXES[language]:
                # The first part of the name is that of the archive.
                name = member.name.partition("/")[2]
                text = archived.extractfile(member).read().decode(errors="replace")
                if len(text.split("\n")) in NUM_LINES and "\ufffd" not in text:
                    yield Source(name, text, language)
