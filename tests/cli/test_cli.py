"""The command line: output, output streams and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from quicksilver import __version__
from quicksilver.model.files.checkpoint import save_model
from tests.support.tiny import tiny_model
from tests.support.weights import MODEL, nano


def quicksilver(*args: str, stdin: str = "", home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    if home is not None:
        env["QUICKSILVER_HOME"] = str(home)
    command = [sys.executable, "-c", "from quicksilver.cli import main; main()", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, check=False, timeout=110)


def test_version_and_help() -> None:
    assert quicksilver("version").stdout.strip() == __version__
    shown = quicksilver("--help").stdout
    for verb in ("generate", "chat", "serve", "pull", "inspect", "bench", "doctor"):
        assert verb in shown


def test_errors_are_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    missing = quicksilver("generate", "x", "--model", MODEL, home=tmp_path)
    assert missing.returncode == 2
    assert f"quicksilver pull {MODEL}" in missing.stderr
    assert "Traceback" not in missing.stderr
    unknown = quicksilver("inspect", "nanno", home=tmp_path)
    assert unknown.returncode == 2
    assert "Did you mean" in unknown.stderr


def test_pull_without_a_name_lists_the_catalogue() -> None:
    assert MODEL in quicksilver("pull").stdout


def test_pull_lets_go_of_a_folder_that_the_adapters_do_not_fit(tmp_path: Path) -> None:
    folder, home = tmp_path / "other", tmp_path / "home"
    save_model(tiny_model(), folder)
    refused = quicksilver("pull", MODEL, "--from", str(folder), home=home)
    assert refused.returncode == 2
    assert "adapter has 30 layers, the model 2" in refused.stderr
    assert f"quicksilver pull {MODEL}" in quicksilver("generate", "x", "--model", MODEL, home=home).stderr


def test_doctor_names_the_one_thing_to_do(tmp_path: Path) -> None:
    report = quicksilver("doctor", home=tmp_path)
    assert report.returncode == 1
    assert "quicksilver pull" in report.stdout


def test_a_broken_config_file_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text("prot = 1\n")
    refused = quicksilver("serve", "--config", str(config))
    assert refused.returncode == 2
    assert "prot" in refused.stderr
    config.write_text("port = = 1")
    assert "cannot read" in quicksilver("serve", "--config", str(config)).stderr


def test_serving_strangers_without_keys_is_refused() -> None:
    nano()
    refused = quicksilver("serve", "--model", MODEL, "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "--allow-anonymous" in refused.stderr


def test_generate_prints_plain_text_to_a_pipe() -> None:
    nano()
    question = "What is the capital of France?"
    answer = quicksilver("generate", "-", "--chat", "--model", MODEL, "--max-tokens", "12", stdin=question)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    assert answer.stderr == ""


def test_inspect_describes_real_weights() -> None:
    nano()
    shown = quicksilver("inspect", MODEL).stdout
    assert "llama" in shown
    assert "49152" in shown.replace(",", "")


def test_chat_in_a_pipe_answers_line_by_line() -> None:
    nano()
    talk = quicksilver("chat", "--model", MODEL, "--max-tokens", "8", stdin="What is the capital of France?\n/new\n")
    assert talk.returncode == 0, talk.stderr
    assert "capital of France" in talk.stdout


def test_the_command_line_itself_does_not_import_torch() -> None:
    code = "import sys, quicksilver.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
