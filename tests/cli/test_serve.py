"""Settings of `serve`: flags override the environment, which overrides the file, which overrides the defaults.

Nothing is loaded: a model that does not exist is refused with its name, which shows which setting was used.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from quicksilver.cli import serve
from quicksilver.cli.app import app
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest, ModelNotFound


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
    path.write_text('port = "eighty"\n')
    result = CliRunner().invoke(app, ["serve", "--config", str(path)])
    assert result.exit_code == 2
    assert "port" in result.output


@pytest.mark.parametrize("name", ["prot", "Port", "server"])
def test_unknown_settings_in_the_file_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f"{name} = 1\n")
    error = refusal("--config", str(path))
    assert isinstance(error, InvalidRequest)
    assert name in error.message


def test_gpu_settings_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    async def keep(plan: serve.ServeSettings) -> None:
        plans.append(plan)

    monkeypatch.setattr(serve, "_run", keep)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve, "resolve", lambda name: SimpleNamespace(name=name))
    result = CliRunner().invoke(app, ["serve", "--weights", "int4"], env={"QUICKSILVER_MATMUL": "batch_invariant"})
    assert result.exit_code == 0, result.output
    assert EngineConfig(**plans[0].worker.engine).matmul == "batch_invariant"
    assert plans[0].worker.load["weights"] == "int4"


def kept_settings(
    monkeypatch: pytest.MonkeyPatch, *args: str, env: dict[str, str] | None = None
) -> serve.ServeSettings:
    """The settings that `serve` would start with."""
    kept = []

    async def keep(settings: serve.ServeSettings) -> None:
        kept.append(settings)

    monkeypatch.setattr(serve, "_run", keep)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve, "resolve", lambda name: SimpleNamespace(name=name))
    result = CliRunner().invoke(app, ["serve", *args], env=env)
    assert result.exit_code == 0, result.output
    return kept[0]


def test_engine_settings_come_from_flag_environment_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[engine]\nmax_running = 8\nmax_rows = 128\npage_size = 32\n")
    env = {"QUICKSILVER_MAX_ROWS": "256"}
    settings = kept_settings(monkeypatch, "--config", str(path), "--max-running", "16", env=env)
    engine = EngineConfig(**settings.worker.engine)
    assert (engine.max_running, engine.max_rows, engine.page_size) == (16, 256, 32)


def test_tables_set_timeouts_limits_and_the_compile_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[timeouts]\ndrain_s = 5\n[limits]\nmax_open = 9\n[compile_pool]\nnum_processes = 1\n")
    settings = kept_settings(monkeypatch, "--config", str(path))
    assert settings.server.timeouts.drain_s == 5
    assert settings.server.max_open == 9
    assert settings.compile_pool.num_processes == 1


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

    monkeypatch.setattr(serve, "_run", keep)
    monkeypatch.setattr(serve, "check_ports", lambda _: None)
    monkeypatch.setattr(serve, "resolve", lambda name: SimpleNamespace(name=name))
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 0, result.output
    assert (plans[0].server.port, plans[0].server.admin_port) == ports
