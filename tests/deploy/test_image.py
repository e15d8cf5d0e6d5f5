"""The Dockerfile's layout: what it copies, who runs it, what it starts and how its health is checked."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from fnmatch import fnmatch
from typing import Any

import pytest

from quicksilver.cli.app import COMMANDS
from quicksilver.server.config import Timeouts
from tests.deploy.test_files import COMPOSE, DEPLOY, ROOT, TEXTS

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Stage -> its instructions, in order, with continued lines joined.
STAGES = {
    re.search(r"AS (\w+)", stage)[1]: re.findall(r"^([A-Z]+) (.*)$", stage, re.MULTILINE)  # type: ignore[index]
    for stage in re.split(r"^(?=FROM )", TEXTS["Dockerfile"].replace("\\\n", " "), flags=re.MULTILINE)[1:]
}


def values(stage: str, instruction: str) -> list[str]:
    return [value for name, value in STAGES[stage] if name == instruction]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in values("base", "ENV") for pair in line.split())


def test_stages_are_a_base_and_two_targets() -> None:
    assert list(STAGES) == ["base", "cpu", "cuda"]
    assert all(value.startswith("base ") for target in ("cpu", "cuda") for value in values(target, "FROM"))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_target_ends_as_a_user_that_is_not_root(target: str) -> None:
    name, user = STAGES[target][-1]
    assert name == "USER"
    assert int(user) >= 1000
    assert f"--uid {user} " in " ".join(values("base", "RUN"))


def test_copied_files_exist_and_are_part_of_the_build_context() -> None:
    ignored = TEXTS["Dockerfile.dockerignore"].split()
    for line in values("base", "COPY"):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert not any(fnmatch(source.removeprefix("./"), pattern) for pattern in ignored)


def test_files_that_the_build_of_the_package_reads_are_copied() -> None:
    copied = {source for line in values("base", "COPY") for source in line.split()[:-1]}
    assert {
        "pyproject.toml",
        "requirements.lock",
        "quicksilver",
        PROJECT["readme"],
        *PROJECT["license-files"],
    } <= copied


def test_the_health_check_calls_a_probe_on_the_exposed_port() -> None:
    (check,) = values("base", "HEALTHCHECK")
    program, flag, code = json.loads(check.split("CMD ", 1)[1])
    (port,) = values("base", "EXPOSE")
    assert (program, flag) == ("python", "-c")
    strings = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert f"http://127.0.0.1:{port}/ready" in strings
    assert environment()["QUICKSILVER_PORT"] == port


def test_the_image_starts_the_server() -> None:
    (program,), (command,) = (json.loads(values("base", name)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert program in PROJECT["scripts"]
    assert command in {each.name for each in COMMANDS}


def test_state_is_on_the_volume_and_the_server_gets_the_signal_that_drains() -> None:
    assert environment()["QUICKSILVER_HOME"] == environment()["HOME"] == values("base", "VOLUME")[0]
    assert values("base", "STOPSIGNAL") == ["SIGTERM"]
    grace_s = int(COMPOSE["services"]["quicksilver"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > Timeouts().drain_s


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_installed_extras_exist(target: str) -> None:
    extras = re.search(r'"\.\[([\w,]+)\]"', " ".join(values(target, "RUN")))
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert {"postgres", "otel", "cluster"} <= set(extras[1].split(","))


def test_secrets_are_mounted_where_the_server_looks_for_them() -> None:
    server = COMPOSE["services"]["quicksilver"]
    assert server["environment"]["QUICKSILVER_PEPPER"] in {f"/run/secrets/{name}" for name in server["secrets"]}
    assert f"/run/secrets/{COMPOSE['services']['prometheus']['secrets'][0]}" in TEXTS["prometheus.yaml"]


def test_variables_of_the_compose_file_are_explained_in_it() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    header = text.split("\nname:")[0]
    assert [name for name in set(re.findall(r"\$\{(\w+)", text)) if name not in header] == []
