"""`quicksilver eval --url` as documented in docs/guides/evaluation.md, and its errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.command import quicksilver
from tests.support.live import serving
from tests.support.weights import MODEL, nano

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md").read_text()
SECTION = PAGE[PAGE.index("## Against a running server") : PAGE.index("## Model-written programs")]
ADDRESS = "http://127.0.0.1:8480/v1"


def documented(url: str, data: Path, out: Path) -> list[str]:
    """The arguments of the documented command, with a short task that needs no data."""
    (command,) = re.findall(r"^    quicksilver (eval .*)$", SECTION, re.MULTILINE)
    swaps = {ADDRESS: url, "DATA": str(data), "generating": "sanity", "100": "2", "served.json": str(out)}
    words = shlex.split(command)
    assert swaps.keys() <= set(words)
    return [swaps.get(word, word) for word in words]


@pytest.mark.contract
@pytest.mark.timeout(300)
def test_the_documented_command_asks_a_live_server(tmp_path: Path) -> None:
    nano()
    out = tmp_path / "served.json"
    with serving(tmp_path / "server.log") as url:
        words = documented(f"{url}/v1", tmp_path, out)
        done = quicksilver(*words)
        elsewhere = quicksilver(*[word.replace("/v1", "/v2") for word in words])
    assert done.returncode == 0, done.stderr
    assert "sanity" in done.stdout
    (report,) = json.loads(out.read_text())["reports"]
    assert [cell["num_failed"] for cell in report["cells"]] == [0, 0]
    assert report["same_as_ar"]["verify K=16"] == [2, 2]
    assert report["engine"]["device"] == f"{url}/v1"
    assert (elsewhere.returncode, "does not answer as a quicksilver server does" in elsewhere.stderr) == (1, True)


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    nano()
    refused = quicksilver("eval", "--url", "http://127.0.0.1:1/v1", "--model", MODEL, "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "no answer from http://127.0.0.1:1/v1" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_what_a_server_cannot_do_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    start = ("eval", "--url", ADDRESS, "--data", str(tmp_path))
    likelihood = quicksilver(*start, "--task", "likelihood")
    assert (likelihood.returncode, "need the engine in this process" in likelihood.stderr) == (2, True)
    against = quicksilver(*start, "--against", "smollm2-135m")
    assert (against.returncode, "cannot be combined with --url" in against.stderr) == (2, True)
