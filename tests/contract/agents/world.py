"""Runs one agent program against a scripted engine and prints what happened as JSON.

`python -m tests.contract.agents.world AGENT WORKSPACE PROGRAM COURSE` is to be started in a network namespace of its
own: it brings up the loopback interface, which is then the only one. The engine answers with the tool calls of the
agent.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.core import Request
from quicksilver.errors import EngineUnavailable
from tests.contract.live import LiveServer, choose_text, spelled_out
from tests.support.fake_engine import INFO, Step, spoken
from tests.support.small_tokenizer import small_tokenizer

MODEL = "nano"
BEFORE = "def greet():\n    return 'hello'\n"
AFTER = "def greet():\n    return 'good morning'\n"
TASK = "In greet.py, let greet() return 'good morning'."
# ioctl numbers and the flag of an interface that is up, from linux/sockios.h and linux/if.h.
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LIMIT_S = 120
ABORT_S = 60


class Course(StrEnum):
    """What happens to the program."""

    # It does its task.
    WHOLE = "whole"
    # Its first request is refused with a 503; it must try again.
    REFUSED = "refused"
    # It is killed while it reads a reply.
    KILLED = "killed"


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(control, SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | IFF_UP, b""))


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass(frozen=True)
class Job:
    """A task for a program: where it works, what it asks, and the file that it changes."""

    url: str
    workspace: Path
    model: str = MODEL
    task: str = TASK
    file: str = "greet.py"
    context_len: int = 1_000_000
    # Of aider.
    edit_format: str = "diff"


@dataclass(frozen=True)
class Agent:
    """How one program is started, and the answers that lead it through the task."""

    # Program and job -> the command line.
    command: Callable[[str, Job], list[str]]
    # The workspace -> one answer for each turn; the last one has no call.
    answers: Callable[[Path], list[str]]
    environment: Callable[[Job], Mapping[str, str]]
    # The name of a tool that only the requests of the task itself offer; empty if every request is part of the task.
    tool: str


@dataclass
class Calls:
    """ASGI layer that records method, path and status of every request."""

    app: ASGIApp
    seen: list[str] = field(default_factory=list)
    # Bodies of replies that are errors.
    errors: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.seen.append(f"{scope['method']} {scope['path']} {status}")
            elif status >= 400:
                self.errors.append(message.get("body", b"").decode())
            await send(message)

        await self.app(scope, receive, noting)


def script_for(agent: Agent, workspace: Path, course: Course) -> Callable[[Request], list[Step]]:
    num_refused = 0

    def script(request: Request) -> list[Step]:
        nonlocal num_refused
        prompt = spelled_out(request)
        head, _, turns = prompt.partition("<|im_end|>")
        answers = agent.answers(workspace)
        num_results = len(re.findall(r"<\|im_start\|>tool", turns))
        is_task = not agent.tool or (f'"{agent.tool}"' in head and request.constraint is not None)
        text = answers[min(num_results, len(answers) - 1)]
        text = text if request.think is None else f"I see.</think>{text}"
        # Programs also ask for a title of the session and the like.
        text = text if is_task else choose_text(request, prompt)
        steps = spoken(request, small_tokenizer().encode_markup(text))
        if is_task and course is Course.REFUSED and not num_refused:
            num_refused += 1
            return [EngineUnavailable("the queue is full")]
        return [steps[0], asyncio.Event().wait] if is_task and course is Course.KILLED else steps

    return script


def main(name: str, workspace: Path, program: str, course: Course) -> None:
    from tests.contract.agents.programs import AGENTS

    agent = AGENTS[name]
    if os.environ.get("QUICKSILVER_OWN_NETWORK"):
        bring_up_loopback()
    (workspace / "greet.py").write_text(BEFORE)
    with tempfile.TemporaryDirectory() as home:
        server = LiveServer(Path(home) / "server", replace(INFO, context_len=1_000_000, num_pages=1 << 20))
        server.engine.script = script_for(agent, workspace, course)
        calls = Calls(server.listener.config.app)  # type: ignore[arg-type]
        server.listener.config.app = calls
        server.start()
        job = Job(server.url, workspace)
        if course is Course.KILLED:
            done = kill_program(agent, program, job, Path(home), server)
        else:
            done = run_program(agent, program, job, Path(home), LIMIT_S)
        num_open = server.engine.num_open
        server.stop()
    print(
        json.dumps(
            {
                "exit": done.returncode,
                "calls": calls.seen,
                "num_open": num_open,
                "errors": calls.errors,
                "file": (workspace / "greet.py").read_text(),
                "prompt": spelled_out(server.engine.seen[-1])[:2000],
                "output": (done.stdout + done.stderr)[-6000:],
            }
        )
    )


def run_program(agent: Agent, program: str, job: Job, home: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        agent.command(program, job),
        cwd=job.workspace,
        env={**minimal_environment(home), **agent.environment(job)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def kill_program(
    agent: Agent, program: str, job: Job, home: Path, server: LiveServer
) -> subprocess.CompletedProcess[str]:
    """Starts the program, kills it and all that it started while it reads a reply, and waits until the engine is idle
    or the time for that is over."""
    with (home / "output").open("w+") as output:
        command, environment = agent.command(program, job), {**minimal_environment(home), **agent.environment(job)}
        process = subprocess.Popen(
            command,
            cwd=job.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: server.engine.num_open > 0 or process.poll() is not None, LIMIT_S)
            has_begun = server.engine.num_open > 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        wait_until(lambda: server.engine.num_open == 0, ABORT_S)
        output.seek(0)
        return subprocess.CompletedProcess(command, 0 if has_begun else 1, output.read(), "")


def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def minimal_environment(home: Path) -> dict[str, str]:
    """No variable of the developer's own reaches the program; proxies lead to a port where nothing listens."""
    closed = "http://127.0.0.1:9"
    proxies = {"HTTP_PROXY": closed, "HTTPS_PROXY": closed, "NO_PROXY": "127.0.0.1,localhost"}
    lower = {name.lower(): value for name, value in proxies.items()}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", **proxies, **lower}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3], Course(sys.argv[4]))
