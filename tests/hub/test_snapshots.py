"""Hub repositories, against a hub server on loopback: what is fetched, what is recorded, and each refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from quicksilver.errors import ModelNotFound, Unavailable
from quicksilver.hub import snapshots
from quicksilver.hub.resolve import resolve
from quicksilver.hub.snapshots import HubName, fetch, look_up, parse_hub_name, pull_snapshot, pulled_files
from tests.support.hub_server import COMMITS, Hub, serve_hub

REPO = "lab/tiny-1.5B"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 400,
    "linear_spec_lora/adapter_model.safetensors": b"adapter",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"copy",
    "onnx/model.safetensors": b"other",
    "README.md": b"text",
}
FETCHED = {"config.json", "tokenizer.json", "model.safetensors", "adapter_model.safetensors"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve_hub({REPO: FILES}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lab/tiny", HubName("lab/tiny")),
        ("lab/tiny@v1.0", HubName("lab/tiny", "v1.0")),
        ("nano", None),
        ("a/b/c", None),
        ("models/tiny.gguf", None),
        ("/absolute/path", None),
    ],
)
def test_a_hub_name_is_owner_slash_name(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name


def test_an_existing_folder_is_never_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    assert parse_hub_name("lab/tiny") is None


def test_only_weights_tokenizer_and_config_are_fetched(hub: Hub, tmp_path: Path) -> None:
    folder = pull_snapshot(look_up(HubName(REPO)), tmp_path)
    assert hub.fetched == FETCHED
    assert {path.name for path in folder.rglob("*") if path.is_file()} == FETCHED
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_progress_ends_at_the_total(hub: Hub, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    pull_snapshot(look_up(HubName(REPO)), tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == sum(look_up(HubName(REPO)).sizes.values())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_commit_is_recorded_and_used_without_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pull_snapshot(look_up(HubName(REPO)), tmp_path)
    by_commit = pulled_files(HubName(REPO, COMMITS["main"]), tmp_path)
    assert by_commit is not None
    assert by_commit.weights == folder
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = resolve(REPO, tmp_path)
    assert (files.name, files.weights) == (REPO, folder)
    assert resolve(f"{REPO}@{COMMITS['main']}", tmp_path).weights == folder
    assert len(hub.requests) == asked


def test_another_revision_is_another_snapshot(hub: Hub, tmp_path: Path) -> None:
    main, old = (pull_snapshot(look_up(HubName(REPO, name)), tmp_path) for name in ("main", "old"))
    assert main != old
    assert resolve(f"{REPO}@old", tmp_path).weights == old
    with pytest.raises(ModelNotFound, match=f"quicksilver pull {REPO}@v9"):
        resolve(f"{REPO}@v9", tmp_path)


def test_complete_files_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    pull_snapshot(look_up(HubName(REPO)), tmp_path)
    hub.requests.clear()
    pull_snapshot(look_up(HubName(REPO)), tmp_path)
    assert hub.fetched == set()


def test_an_interrupted_download_resumes_at_its_byte(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut_after = 5000
    snapshot = look_up(HubName(REPO))
    try:
        pull_snapshot(snapshot, tmp_path)
    except Unavailable:
        assert pulled_files(HubName(REPO), tmp_path) is None
    folder = pull_snapshot(snapshot, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert any(1 < int(asked.split("=")[1].split("-")[0]) <= 5000 for asked in hub.ranges)


def test_a_full_disk_is_reported_before_a_file_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(Unavailable, match="HF_HOME"):
        pull_snapshot(look_up(HubName(REPO)), tmp_path)
    assert hub.fetched == set()


def test_small_files_can_be_fetched_alone(hub: Hub) -> None:
    snapshot = look_up(HubName(REPO))
    folder = fetch(snapshot, snapshot.small)
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "qwen3"}
    assert not (folder / "model.safetensors").exists()


def test_a_gated_repository_asks_for_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFound, match="HF_TOKEN"):
        look_up(HubName(REPO))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert look_up(HubName(REPO)).commit == COMMITS["main"]


def test_names_that_the_hub_does_not_have_are_refused(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match="no repository lab/other"):
        look_up(HubName("lab/other"))
    with pytest.raises(ModelNotFound, match="no revision 'v9'"):
        look_up(HubName(REPO, "v9"))


def test_a_repository_without_safetensors_is_refused(hub: Hub) -> None:
    hub.repos["lab/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with pytest.raises(ModelNotFound, match="pickled weights"):
        look_up(HubName("lab/pickled"))


def test_offline_mode_sends_no_request(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        look_up(HubName(REPO))
    assert hub.requests == []


def test_an_unreachable_hub_is_one_clear_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="did not answer"):
        look_up(HubName(REPO))
