"""openai-python drives jobs on a live server with a real trainer: the examples of docs/guides/fine-tuning.md.

The engine is scripted, so the adapter is judged from its archive. `fine_tuning_toy.py` runs the examples with a real
engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import Adapter, save_adapter
from quicksilver.training.export import low_rank_layers
from quicksilver.training.service.peft import from_peft
from quicksilver.tuning.settings import TrainerSettings
from tests.contract.fine_tuning_toy import LAST, examples
from tests.contract.live import LiveServer
from tests.support.tuning import CONFIG, exact_matches, write_base
from tests.training.service.test_program import FORKS, train

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_base(tmp_path_factory.mktemp("base") / "toy")


@pytest.mark.timeout(300)
def test_the_examples_of_the_guide_teach_a_toy_model_its_task(
    base: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact matches rise from 0 to 9 of 10 or more, with the adapter that was downloaded."""
    server = LiveServer(tmp_path)
    server.start()
    settings = TrainerSettings(tmp_path, {"nano": base}, device="cpu", threads=1, idle_s=200)
    trainer = FORKS.Process(target=train, args=(settings.encode(),), daemon=True)
    trainer.start()
    monkeypatch.setenv("URL", server.url)
    learn, _, upload = examples()
    found: dict[str, object] = {}
    try:
        exec(learn + upload + LAST, found)
    finally:
        trainer.kill()
        trainer.join()
        server.stop()
    assert "import succeeded None" in capsys.readouterr().out
    adapter = tmp_path / "adapter.safetensors"
    archive = found["archive"]
    assert isinstance(archive, bytes)
    save_adapter(adapter, Adapter(low_rank_layers(from_peft(archive, CONFIG))), {}, bits=16)
    assert exact_matches(base, None) == 0
    assert exact_matches(base, adapter) >= 9
