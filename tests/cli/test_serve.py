"""Settings of `serve`: flags override the environment, which overrides the file, which overrides the defaults.

Nothing is loaded: a model that does not exist is refused with its name, which shows which setting was used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.main import get_command
from typer.testing import CliRunner

from quicksilver.cli import serve, serve_run, serve_settings
from quicksilver.cli.api_process import ApiProcessSettings
from quicksilver.cli.app import app
from quicksilver.cli.serve_settings import LogSettings
from quicksilver.dialect import AUTOREGRESSIVE
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest, ModelNotFound
from quicksilver.hub.files import ModelFiles
from quicksilver.model.families import FAMILIES
from tests.support.fake_engine import INFO


def refusal(*args: str, env: dict[str, str] | None = None) -> Exception:
    result = CliRunner().invoke(app, ["serve", *args], env={"QUICKSILVER_MODEL": None, **(env or {})})
    assert isinstance(result.exception, Exception), result.output
    return result.exception


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "server.toml"
    path.write_text('model = "of-the-file"\nallow_host = ["files.example"]\n')
    return str(path)


def test_flags_win_over_the_environment_and_that_over_the_file(config: str) -> None:
    env = {"QUICKSILVER_MODEL": "of-the-environment", "QUICKSILVER_CONFIG": config}
    winners = {
        "of-the-flag": refusal("--model", "of-the-flag", env=env),
        "of-the-environment": refusal(env=env),
        "of-the-file": refusal("--config", config),
    }
    for name, error in winners.items():
        assert isinstance(error, ModelNotFound)
        assert name in error.message


def test_a_setting_of_the_wrong_type_in_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    for line, name in (('port = "eighty"', "port"), ("port = 70000", "port"), ('weights = "int3"', "weights")):
        path.write_text(f"{line}\n")
        error = refusal("--config", str(path))
        assert isinstance(error, InvalidRequest)
        assert error.message.startswith(f"{path}: {name}: "), error.message


@pytest.mark.parametrize("name", ["prot", "Port", "server"])
def test_unknown_settings_in_the_file_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f"{name} = 1\n")
    error = refusal("--config", str(path))
    assert isinstance(error, InvalidRequest)
    assert name in error.message
    assert ("did you mean port?" in error.message) is (name != "server")


def test_a_file_that_does_not_exist_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    error = refusal("--config", str(path))
    assert isinstance(error, InvalidRequest)
    assert error.message == f"cannot read {path}: No such file or directory"


def test_gpu_settings_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    async def keep(plan: serve.ServeSettings) -> None:
        plans.append(plan)

    monkeypatch.setattr(serve, "run_server", keep)
    monkeypatch.setattr(serve, "default_num_processes", lambda device: 1)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: SimpleNamespace(name=name))
    result = CliRunner().invoke(app, ["serve", "--weights", "int4"], env={"QUICKSILVER_MATMUL": "batch_invariant"})
    assert result.exit_code == 0, result.output
    assert EngineConfig(**plans[0].default.worker.engine).matmul == "batch_invariant"
    assert plans[0].default.worker.load["weights"] == "int4"


def kept_settings(
    monkeypatch: pytest.MonkeyPatch, *args: str, env: dict[str, str] | None = None
) -> serve.ServeSettings:
    """The settings that `serve` would start with."""
    kept = []

    async def keep(settings: serve.ServeSettings) -> None:
        kept.append(settings)

    monkeypatch.setattr(serve, "run_server", keep)
    monkeypatch.setattr(serve, "default_num_processes", lambda device: 1)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: ModelFiles(name, Path(name)))
    result = CliRunner().invoke(app, ["serve", *args], env=env)
    assert result.exit_code == 0, result.output
    return kept[0]


def test_adapter_files_are_for_the_first_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "skill.safetensors"
    save_file({"layers.0.qkv.A": np.zeros(2, dtype=np.float32)}, path)
    settings = kept_settings(monkeypatch, "--adapter", str(path), "--model", "nano", "--model", "smollm2-135m")
    assert settings.models[0].files.skill == path
    assert settings.models[0].worker.adapters == [str(path)]
    assert settings.models[1].worker.adapters == []


def test_the_panel_names_the_adapters_or_the_command_that_makes_one() -> None:
    found = ModelFiles("mine", Path("mine.gguf"), None, Path("a/canvas.safetensors"))
    info = replace(INFO, decoders=AUTOREGRESSIVE.decoders)
    assert serve_run._adapters(found, info) == "canvas canvas.safetensors"
    without = ModelFiles("mine", Path("mine.gguf"))
    assert serve_run._adapters(without, info) == "no canvas: quicksilver convert mine.gguf"
    for family in (FAMILIES["sdar"], FAMILIES["llada"], FAMILIES["dream"]):
        dialect = family.dialect({}, "mine")
        assert serve_run._adapters(without, replace(INFO, decoders=dialect.decoders)) == ""


def test_the_panel_shows_brackets_and_an_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--host", "0.0.0.0", "--admin-host", "::", "--allow-anonymous", "--model", "mine[/b]")
    settings = kept_settings(monkeypatch, *flags)
    console = Console(width=200)
    monkeypatch.setattr(serve_run, "errors", console)
    with console.capture() as capture:
        serve_run.print_announcement(settings, replace(INFO, model="mine[/b]"), settings.server)
    shown = capture.get()
    assert "mine[/b] (fake" in shown
    assert "curl http://127.0.0.1:8480/v1/chat/completions" in shown
    assert "http://[::1]:8481/metrics" in shown


def test_engine_settings_come_from_flag_environment_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[engine]\nmax_running = 8\nmax_rows = 128\npage_size = 32\n")
    env = {"QUICKSILVER_MAX_ROWS": "256"}
    settings = kept_settings(monkeypatch, "--config", str(path), "--max-running", "16", env=env)
    engine = EngineConfig(**settings.default.worker.engine)
    assert (engine.max_running, engine.max_rows, engine.page_size) == (16, 256, 32)


def test_tables_set_timeouts_limits_and_the_compile_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[timeouts]\ndrain_s = 5\n[limits]\nmax_open = 9\n[compile_pool]\nnum_processes = 1\n")
    settings = kept_settings(monkeypatch, "--config", str(path))
    assert settings.server.timeouts.drain_s == 5
    assert settings.server.max_open == 9
    assert settings.compile_pool.num_processes == 1


HYBRID = """
[[hybrid.upstreams]]
name = "strong"
url = "https://llm.example.com/v1"
model = "big"
key_env = "STRONG_KEY"
price = { input = 3000000, output = 15000000 }
[[hybrid.rules]]
name = "all"
when = { kinds = ["chat"] }
to = ["nano", "strong"]
gate = { mean_logprob = -0.5 }
"""


def test_hybrid_routing_is_off_without_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kept_settings(monkeypatch)
    assert settings.hybrid is None
    assert "auto" not in settings.name_table().chat


def test_a_hybrid_table_names_auto_and_reaches_every_api_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(HYBRID)
    settings = kept_settings(monkeypatch, "--config", str(path), env={"STRONG_KEY": "k"})
    assert settings.hybrid is not None
    assert settings.hybrid.upstreams[0].url == "https://llm.example.com/v1"
    assert settings.name_table().chat["auto:best"] == "nano"
    sent = ApiProcessSettings(settings, Path("socket"), LogSettings("info", "json"), 2).encode()
    assert ApiProcessSettings.decode(sent).serve.hybrid == settings.hybrid
    assert b'"k"' not in sent


@pytest.mark.parametrize(
    ("change", "env", "named"),
    [
        (("", ""), {}, "STRONG_KEY"),
        (('to = ["nano", "strong"]', 'to = ["nano", "weak"]'), {"STRONG_KEY": "k"}, "weak"),
        (("https://", "file://"), {"STRONG_KEY": "k"}, "must be like"),
    ],
)
def test_a_wrong_hybrid_table_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], env: dict[str, str], named: str
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(HYBRID.replace(*change))
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: ModelFiles(name, Path(name)))
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    error = refusal("--config", str(path), env=env)
    assert isinstance(error, InvalidRequest)
    assert named in error.message


def test_auto_cannot_be_a_served_name_with_hybrid_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text(HYBRID)
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: ModelFiles(name, Path(name)))
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    error = refusal("--config", str(path), "--served-name", "auto=nano", env={"STRONG_KEY": "k"})
    assert isinstance(error, InvalidRequest)
    assert "auto cannot name a model" in error.message


def test_several_models_with_names_and_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--model", "nano", "--model", "smollm2-135m", "--served-name", "gpt-4o=nano", "--pin", "nano")
    settings = kept_settings(monkeypatch, *flags, "--idle-unload-s", "60")
    assert settings.ids == ("nano", "smollm2-135m")
    assert [model.is_pinned for model in settings.models] == [True, False]
    assert settings.served_names == {"gpt-4o": "nano"}
    assert settings.model_pool.idle_unload_s == 60
    assert settings.server.card.id == "nano"


def test_several_models_in_the_file_and_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text(
        'model = ["nano", "smollm2-135m"]\npin = ["nano"]\nserved_name = { gpt-4o = "smollm2-135m" }\n'
        "[models]\nload_wait_s = 5\nmax_load_waiting = 3\n"
    )
    settings = kept_settings(monkeypatch, "--config", str(path))
    assert settings.ids == ("nano", "smollm2-135m")
    assert settings.served_names == {"gpt-4o": "smollm2-135m"}
    assert (settings.model_pool.load_wait_s, settings.model_pool.max_load_waiting) == (5, 3)
    env = {"QUICKSILVER_MODEL": "smollm2-135m nano"}
    assert kept_settings(monkeypatch, env=env).ids == ("smollm2-135m", "nano")


def test_a_companion_is_served_too_unless_it_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kept_settings(monkeypatch, "--model", "coder-1.5b")
    assert settings.ids == ("coder-1.5b", "coder-1.5b-edit")
    assert settings.companions == {"coder-1.5b": "coder-1.5b-edit"}
    alone = kept_settings(monkeypatch, "--model", "coder-1.5b", "--no-companion")
    assert (alone.ids, alone.companions) == (("coder-1.5b",), {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--served-name", "x"), "NAME=MODEL"),
        (("--served-name", "x=other"), "other is not served here"),
        (("--pin", "other"), "--pin other"),
        (("--model", "a/model.gguf", "--model", "b/model.gguf"), "two models have the name model"),
    ],
)
def test_names_and_pins_of_models_that_are_not_served_are_refused(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: SimpleNamespace(name=Path(name).stem))
    error = refusal(*flags)
    assert isinstance(error, InvalidRequest)
    assert message in error.message


def test_a_gpu_setting_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(app, ["serve", "--weights", "int5"])
    assert result.exit_code == 2
    assert "int4" in result.output


DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = (DOCS / "reference" / "configuration.md").read_text()
PAGE = (DOCS / "guides" / "operations.md").read_text()


def test_every_setting_is_on_its_page_with_flag_and_environment_variable() -> None:
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    names = [option.name for option in command.params if option.name != "config"]
    assert len(names) > 10
    for name in names:
        assert f"| `--{name.replace('_', '-')}` | `QUICKSILVER_{name.upper()}` |" in SETTINGS
        option = next(option for option in command.params if option.name == name)
        assert option.envvar == f"QUICKSILVER_{name.upper()}"


def test_the_file_on_that_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(PAGE.split("```toml\n")[1].split("```")[0].replace('"nano"', '"of-the-page"'))
    assert "of-the-page" in str(refusal("--config", str(path)))


@pytest.mark.parametrize(
    ("flags", "ports"),
    [
        ([], (8480, 8481)),
        (["--port", "9000"], (9000, 9001)),
        (["--port", "0"], (0, 0)),
        (["--port", "65535"], (65535, 65534)),
        (["--port", "9000", "--admin-port", "7000"], (9000, 7000)),
    ],
)
def test_the_admin_port_follows_the_port(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], ports: tuple[int, int]
) -> None:
    plans = []

    async def keep(plan: serve.ServeSettings) -> None:
        plans.append(plan)

    monkeypatch.setattr(serve, "run_server", keep)
    monkeypatch.setattr(serve, "default_num_processes", lambda device: 1)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve_settings, "find_with_tokenizer", lambda name: SimpleNamespace(name=name))
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 0, result.output
    assert (plans[0].server.port, plans[0].server.admin_port) == ports
