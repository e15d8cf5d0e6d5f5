"""Snapshots of Hugging Face repositories: `owner/name[@revision]` -> a folder of safetensors on this machine.

`huggingface_hub` downloads and resumes, and keeps the files in its own cache, so that other programs share them. Only
safetensors, tokenizer, template and config files are fetched; pickles and Python files never are. A pull records the
commit that it fetched. Later commands use this commit without a network, until the next pull.

Environment: `HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME` or `HF_HUB_CACHE`, and `HF_HUB_OFFLINE`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from quicksilver.errors import ModelNotFound, Unavailable
from quicksilver.hub.files import ModelFiles, default_home

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_MAIN = "main"
# Everything but the weights.
SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "LICENSE*",
    "model.safetensors.index.json",
)  # fmt: skip
# Nemotron-Labs-Diffusion stores its draft adapter in this folder.
DRAFT_ADAPTER = "linear_spec_lora"
_ADAPTER_FILES = (f"{DRAFT_ADAPTER}/adapter_config.json", f"{DRAFT_ADAPTER}/adapter_model.safetensors")
# Mistral's own layout of the same weights.
_DUPLICATES = "consolidated*.safetensors"

# report(bytes done, bytes in total)
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the hub and the branch, tag or commit to use."""

    repo: str
    revision: str = _MAIN

    def __str__(self) -> str:
        return self.repo if self.revision == _MAIN else f"{self.repo}@{self.revision}"


def parse_hub_name(name: str) -> HubName | None:
    """None if `name` is a path that exists or does not have the form owner/name[@revision]."""
    match = _NAME.fullmatch(name)
    if match is None or Path(name).exists() or name.endswith(".gguf"):
        return None
    return HubName(match[1], match[2] or _MAIN)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, and the files of it that are fetched, with their sizes."""

    name: HubName
    commit: str
    sizes: dict[str, int]

    @property
    def small(self) -> list[str]:
        return [file for file in self.sizes if not file.endswith(".safetensors")]


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def look_up(name: HubName) -> Snapshot:
    """Asks the hub for the commit and the files of a revision."""
    from huggingface_hub import HfApi

    if is_offline():
        raise Unavailable(f"HF_HUB_OFFLINE is set, and {name} is not on this machine")
    with _translated(name):
        info = HfApi(endpoint=_endpoint()).model_info(name.repo, revision=name.revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if _is_wanted(file.rfilename)}
    if not any(file.endswith(".safetensors") for file in sizes):
        raise ModelNotFound(f"{name} has no .safetensors files; pickled weights are not supported")
    return Snapshot(name, str(info.sha), sizes)


def fetch(snapshot: Snapshot, files: list[str] | None = None, report: Report = lambda done, total: None) -> Path:
    """Downloads `files` of a snapshot, or all of them, and returns its folder. Complete files are not fetched again,
    partial ones are resumed."""
    wanted = list(snapshot.sizes) if files is None else files
    missing = [file for file in wanted if _cached(snapshot, file) is None]
    _check_disk(snapshot, sum(snapshot.sizes[file] for file in missing))
    total = sum(snapshot.sizes[file] for file in wanted)
    done = total - sum(snapshot.sizes[file] for file in missing)
    for file in missing:
        before = done

        def add(count: int, before: int = before, file: str = file) -> None:
            nonlocal done
            done = min(done + count, before + snapshot.sizes[file])
            report(done, total)

        _download(snapshot, file, add)
        done = before + snapshot.sizes[file]
        report(done, total)
    first = _cached(snapshot, wanted[0])
    assert first is not None
    return first.parents[wanted[0].count("/")]


def pull_snapshot(snapshot: Snapshot, home: Path | None = None, report: Report = lambda done, total: None) -> Path:
    """Fetches all files and records the commit as the one that the name means from now on."""
    folder = fetch(snapshot, None, report)
    path = _record_path(snapshot.name.repo, home or default_home())
    known = _read_record(path)
    known[snapshot.name.revision] = {"commit": snapshot.commit, "folder": str(folder)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(known, indent=2) + "\n")
    os.replace(partial, path)
    return folder


def pulled_files(name: HubName, home: Path | None = None) -> ModelFiles | None:
    """The recorded snapshot of a name, if its folder still exists."""
    known = _read_record(_record_path(name.repo, home or default_home()))
    by_commit = {entry["commit"]: entry for entry in known.values()}
    entry = known.get(name.revision) or by_commit.get(name.revision)
    if entry is None or not (folder := Path(entry["folder"])).is_dir():
        return None
    return ModelFiles.in_folder(str(name), folder)


def _is_wanted(file: str) -> bool:
    if "/" in file:
        return file in _ADAPTER_FILES
    is_weights = file.endswith(".safetensors") and not fnmatch(file, _DUPLICATES)
    return is_weights or any(fnmatch(file, pattern) for pattern in SMALL_FILES)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _cached(snapshot: Snapshot, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(snapshot.name.repo, file, cache_dir=_cache_dir(), revision=snapshot.commit)
    return Path(found) if isinstance(found, str) else None


def _cache_dir() -> Path:
    """As huggingface_hub determines it, but from the current environment."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def _check_disk(snapshot: Snapshot, needed: int) -> None:
    folder = _cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"{snapshot.name} needs {needed / 1e9:.1f} GB at {folder}, but only {free / 1e9:.1f} GB are free. "
            "Free some space or set HF_HOME to another folder."
        )


def _download(snapshot: Snapshot, file: str, add: Callable[[int], None]) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Reporter(tqdm):  # type: ignore[misc, valid-type]
        """Passes the number of received bytes on and prints nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            add(int(n or 0))
            return None

    with _translated(snapshot.name):
        hf_hub_download(
            snapshot.name.repo,
            file,
            revision=snapshot.commit,
            cache_dir=_cache_dir(),
            endpoint=_endpoint(),
            tqdm_class=Reporter,
        )


@contextmanager
def _translated(name: HubName) -> Iterator[None]:
    """Turns the exceptions of huggingface_hub into ours. Those of its HTTP client depend on its version, so that
    every other exception counts as a failed transfer."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise ModelNotFound(f"{name} is gated: accept its licence on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{name.repo} has no revision {name.revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"there is no repository {name.repo} on the hub, or HF_TOKEN may not read it") from error
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise Unavailable(f"{name}: the hub did not answer: {reason}. Received files are kept; try again.") from error


def _record_path(repo: str, home: Path) -> Path:
    return home / "hub" / f"{repo.replace('/', '--')}.json"


def _read_record(path: Path) -> dict[str, dict[str, str]]:
    """Entries by revision: the commit and the folder of its snapshot."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
