"""Settings that the supervisor passes to its API processes."""

from __future__ import annotations

from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.cli.api_process import ApiProcessSettings, for_one_process
from quicksilver.cli.serve_settings import LogSettings, ModelSettings, ServeSettings
from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.hub.resolve import ModelFiles
from quicksilver.server.config import ServerConfig
from quicksilver.worker.program import WorkerConfig

MODEL = ModelSettings(ModelFiles("a", Path("/a.gguf"), canvas=Path("/c")), WorkerConfig("a", {"threads": 2}), True)
SETTINGS = ServeSettings(
    models=(MODEL,),
    server=ServerConfig(home=Path("/home"), max_open=10, max_open_public=3),
    accounts=("sqlite:///x.db", AccountsConfig(pepper_path=Path("/pepper"))),
    compile_pool=PoolConfig(num_processes=3),
    companions={"a": "b"},
    served_names={"x": "a"},
)


def test_settings_are_passed_unchanged_to_an_api_process() -> None:
    passed = ApiProcessSettings(SETTINGS, Path("/control"), LogSettings("info", "json"), 4)
    line = passed.encode()
    assert b"\n" not in line
    assert ApiProcessSettings.decode(line) == passed


def test_limits_and_helper_processes_of_the_server_are_divided() -> None:
    one = for_one_process(SETTINGS, 4)
    assert (one.server.max_open, one.server.max_open_public, one.compile_pool.num_processes) == (3, 1, 1)
    assert for_one_process(SETTINGS, 1) == SETTINGS
