"""Claims against pages, result files and commands, in a small made-up checkout."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.evals.claims import Claim, Verifier, fill, has_fields, look_up, read_claims, run_command
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.resolve import base_path

ROOT = Path(__file__).parents[2]
SPEED = Claim(
    id="speed",
    text="{value} tokens/s",
    hardware="cpu",
    harness="a script",
    page="docs/page.md",
    quote="| nano | * | {value} |",
    result="results/speed-*.json",
    where={"settings.model": "nano"},
    value=["rows", {"way": "verify"}, "speed"],
    format=",.0f",
    band=[1000, 2000],
)
WRITE_PROGRAM = "import sys; open(sys.argv[1] + '/r.json', 'w').write(sys.argv[2])"
WRITE = f"{{{{python}}}} -c \"{WRITE_PROGRAM}\" {{{{out}}}} '{{}}'"


def report(speed: float, date: str, model: str = "nano") -> str:
    return json.dumps({"date": date, "settings": {"model": model}, "rows": [{"way": "verify", "speed": speed}]})


def measured(speed: float) -> Claim:
    text = report(speed, "2026-02-01").replace("{", "{{").replace("}", "}}")
    return running(WRITE.format(text))


def running(command: str, **fields: Any) -> Claim:
    return replace(SPEED, is_measured=True, **{"minutes": 1, "command": command, **fields})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/page.md").write_text("# Speed\n\n| model | x | y |\n|---|---|---|\n| nano | 7 | 1,234 |\n")
    (tmp_path / "results/speed-a.json").write_text(report(900, "2026-01-01"))
    (tmp_path / "results/speed-b.json").write_text(report(1234.2, "2026-01-02"))
    (tmp_path / "results/speed-c.json").write_text(report(1, "2026-01-03", model="other"))
    return tmp_path


def test_a_claim_holds_with_the_newest_report_of_its_kind(checkout: Path) -> None:
    outcome = Verifier(checkout).check(SPEED)
    assert (outcome.problems, outcome.recorded, outcome.source) == ((), 1234.2, "speed-b.json")
    assert outcome.skipped == "its command is run by hand"
    assert outcome.plain()["text"] == "1,234 tokens/s"


def test_a_figure_edited_by_hand_is_found(checkout: Path) -> None:
    page = checkout / "docs/page.md"
    page.write_text(page.read_text().replace("1,234", "1,999"))
    (problem,) = Verifier(checkout).check(SPEED).problems
    assert problem == "docs/page.md does not contain: | nano | * | 1,234 |"


def test_a_wildcard_stays_within_its_cell(checkout: Path) -> None:
    assert Verifier(checkout).check(replace(SPEED, quote="| nano | {value} |")).problems
    assert Verifier(checkout).check(replace(SPEED, quote="| model | * | {value} |")).problems


def test_a_recorded_value_outside_its_band_is_found(checkout: Path) -> None:
    (problem,) = Verifier(checkout).check(replace(SPEED, band=[1300, 2000])).problems
    assert "recorded value 1234.2 is outside" in problem


@pytest.mark.parametrize(("speed", "num_problems"), [(1500, 0), (2500, 1)])
def test_a_measured_value_must_be_in_the_band(checkout: Path, speed: float, num_problems: int) -> None:
    outcome = Verifier(checkout).check(measured(speed))
    assert (outcome.measured, len(outcome.problems)) == (speed, num_problems)


def test_a_command_of_several_claims_runs_once(checkout: Path) -> None:
    claim = measured(1500)
    program = "import sys; open('runs', 'a').write('x'); open(sys.argv[1] + '/r.json', 'w').write(sys.argv[2])"
    claim = replace(claim, command=claim.command.replace(WRITE_PROGRAM, program))
    verifier = Verifier(checkout)
    outcomes = [verifier.check(each) for each in (claim, replace(claim, id="again", scale=1.2))]
    assert [outcome.measured for outcome in outcomes] == [1500, 1800]
    assert (checkout / "runs").read_text() == "x"


def test_a_failed_command_of_several_claims_runs_once_and_fails_all_of_them(checkout: Path) -> None:
    command = "{python} -c \"open('runs', 'a').write('x'); raise SystemExit('no disk')\""
    claim = running(command)
    verifier = Verifier(checkout)
    for each in (claim, replace(claim, id="again")):
        assert verifier.check(each).problems == ("the command exited with 1: no disk",)
    assert (checkout / "runs").read_text() == "x"


def test_claims_that_this_machine_cannot_run_are_checked_against_their_record(checkout: Path) -> None:
    gpu, data = replace(measured(1500), hardware="H200"), replace(measured(1500), data="items.jsonl")
    assert Verifier(checkout).check(gpu).skipped == "needs a GPU of type H200"
    assert Verifier(checkout, gpu="NVIDIA A100").check(gpu).skipped == "needs a GPU of type H200"
    assert Verifier(checkout, gpu="NVIDIA H200").check(gpu).measured == 1500
    assert Verifier(checkout).check(data).skipped == "needs --data with items.jsonl"
    assert Verifier(checkout, is_measuring=False).check(measured(1500)).measured is None


@pytest.mark.parametrize(("load", "is_run"), [(0.9, True), (1.6, False)])
def test_a_ratio_of_times_is_measured_on_an_idle_machine_only(checkout: Path, load: float, is_run: bool) -> None:
    verifier = Verifier(checkout, load_per_core=lambda: load)
    outcome = verifier.check(replace(measured(1500), needs_idle=True))
    assert (outcome.measured is not None) is is_run
    assert outcome.skipped == ("" if is_run else "needs an idle machine; the load average is 1.6 per core")
    assert verifier.check(measured(1500)).measured == 1500


def test_a_command_that_fails_or_writes_nothing_is_a_problem(checkout: Path) -> None:
    failing = running("{python} -c 'raise SystemExit(\"no disk\")'")
    assert Verifier(checkout).check(failing).problems == ("the command exited with 1: no disk",)
    silent = running("{python} -c pass")
    assert "no report" in Verifier(checkout).check(silent).problems[0]


@pytest.mark.parametrize(("need", "reason"), [("sh", ""), ("json", ""), ("no-such-program", "needs no-such-program")])
def test_a_claim_is_measured_if_its_programs_and_packages_are_installed(checkout: Path, need: str, reason: str) -> None:
    outcome = Verifier(checkout).check(replace(measured(1500), needs=[need]))
    assert (outcome.skipped, outcome.measured is None) == (reason, bool(reason))
    assert (outcome.problems, outcome.recorded) == ((), 1234.2)


@pytest.mark.parametrize(("status", "is_served", "is_run"), [(200, True, True), (404, True, True), (200, False, False)])
def test_a_claim_is_measured_if_its_address_can_be_reached(
    checkout: Path, status: int, is_served: bool, is_run: bool
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    if is_served:
        thread.start()
    else:
        server.server_close()
    outcome = Verifier(checkout).check(replace(measured(1500), needs=[url]))
    if is_served:
        server.shutdown()
        server.server_close()
    assert (outcome.measured is not None, outcome.skipped) == (is_run, "" if is_run else f"needs {url}")


def test_a_claim_is_measured_if_its_model_is_on_the_machine(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUICKSILVER_HOME", str(tmp_path))
    claim = replace(measured(1500), needs=["coder-1.5b"])
    assert Verifier(checkout).check(claim).skipped == "needs `quicksilver pull coder-1.5b`"
    path = base_path(load_catalogue().bases[load_catalogue().model("coder-1.5b").base], tmp_path)
    path.parent.mkdir(parents=True)
    path.touch()
    assert Verifier(checkout).check(claim).measured == 1500


@pytest.mark.parametrize(("minutes", "reason"), [(29, "takes 30 minutes (--minutes 30)"), (30, "")])
def test_a_claim_that_takes_long_is_measured_on_request(checkout: Path, minutes: float, reason: str) -> None:
    claim = replace(measured(1500), minutes=30)
    assert Verifier(checkout).check(claim).skipped == "takes 30 minutes (--minutes 30)"
    assert Verifier(checkout, minutes=minutes).check(claim).skipped == reason


def test_all_reasons_against_a_measurement_are_named(checkout: Path) -> None:
    claim = replace(measured(1500), minutes=30, needs=["no-such-program"], data="items.jsonl")
    reasons = "needs no-such-program, needs --data with items.jsonl, takes 30 minutes (--minutes 30)"
    assert Verifier(checkout).check(claim).skipped == reasons


@pytest.mark.parametrize(("minutes", "limit_s"), [(0.1, 1800), (6, 1800), (30, 9000)])
def test_the_time_limit_follows_from_the_expected_time(minutes: float, limit_s: float) -> None:
    assert replace(measured(1500), minutes=minutes).limit_s == limit_s


def is_running(pid: str) -> bool:
    """Whether the process exists and has not ended; a zombie waits for the process that adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_stopped_command_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", "sleep 600 & echo $! > pid; wait"], tmp_path, limit_s=2)
    pid = (tmp_path / "pid").read_text().strip()
    # The signal reaches the process after the call that sends it.
    for _ in range(300):
        if not is_running(pid):
            break
        time.sleep(0.1)
    assert not is_running(pid)


def test_a_command_is_announced_when_it_starts(checkout: Path) -> None:
    announced: list[str] = []
    verifier = Verifier(checkout, on_run=lambda claim: announced.append(claim.id))
    for claim in (measured(1500), replace(measured(1500), id="again"), replace(measured(1500), id="long", minutes=3)):
        verifier.check(claim)
    assert announced == ["speed"]


def test_placeholders_of_a_command_are_filled() -> None:
    names = {"python": "/usr/bin/python3", "out": "/tmp/a folder", "data": "d.json"}
    words = fill("{python} -m program {data} --out {out}/r.json '{{}}'", names)
    assert words == ["/usr/bin/python3", "-m", "program", "d.json", "--out", "/tmp/a folder/r.json", "{}"]
    with pytest.raises(InvalidRequest, match="placeholder other than python, out, data: 'folder'"):
        fill("{python} {folder}", names)


def test_a_claim_without_a_value_holds_if_its_command_succeeds(checkout: Path) -> None:
    check = Claim("tables", "Tables are current.", "cpu", "a script", command="{python} -c pass", minutes=1)
    assert Verifier(checkout).check(check).problems == ()
    assert Verifier(checkout).check(replace(check, command="{python} -c 1/0")).problems


def test_a_missing_page_or_report_is_a_problem(checkout: Path) -> None:
    assert Verifier(checkout).check(replace(SPEED, page="docs/none.md")).problems == ("docs/none.md cannot be read",)
    assert "no report" in Verifier(checkout).check(replace(SPEED, result="results/x-*.json")).problems[0]


def test_paths_lead_through_objects_lists_and_shares() -> None:
    assert look_up({"a": [{"b": 1}, {"b": 2, "c": "36/40"}]}, ["a", {"b": 2}, "c"]) == 36
    assert has_fields({"a": {"b": 1}}, {"a.b": 1})
    assert not has_fields({"a": 1}, {"a.b": 1})


@pytest.mark.parametrize(
    "change",
    [{"quote": ""}, {"quote": "no figure"}, {"band": [1]}, {"value": ()}, {"result": ""}, {"is_measured": True}],
    ids=lambda change: next(iter(change)),
)
def test_an_incomplete_claim_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="claim speed"):
        replace(SPEED, **change)


def test_a_file_that_is_not_a_claims_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    for text in ("[[claim]]\nunknown = 1\n", "not toml", ""):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="is not a claims file"):
            read_claims(path)
    with pytest.raises(InvalidRequest):
        read_claims(tmp_path / "none.toml")


def test_the_claims_of_this_checkout_hold_without_new_runs() -> None:
    verifier = Verifier(ROOT, is_measuring=False)
    claims = [claim for claim in read_claims(ROOT / "docs/claims.toml") if claim.value]
    assert len(claims) > 20
    assert [(claim.id, problems) for claim in claims if (problems := verifier.check(claim).problems)] == []
