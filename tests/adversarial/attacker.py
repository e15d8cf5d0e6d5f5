"""A seeded mixture of attacks on a server with nano and accounts, and what a well-behaved client sees meanwhile.

    python -m tests.adversarial.attacker --minutes 30 --seed 1 --report attack.json

The attackers run in a process of their own. They stand for other machines: with `--attacker-nice 19` they take little
processor time from the server. With `--fault-every 30`, a worker, compile or encoder process is killed or stopped every
30 s. Exits 1 after an undeclared 5xx, a hang, a process that was not replaced, a server that is not ready at the end,
or a ledger that does not add up.
Latencies, memory and the seconds to a replacement are reported and not judged, since they depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.evals.report import machine_facts
from tests.adversarial.attack_bodies import CHAT
from tests.adversarial.attacks import ATTACKS, HANG_S, Exchange, Target
from tests.adversarial.engine_work import EngineWork
from tests.adversarial.process_faults import Fault, inject, process_tree
from tests.support.live import free_port, serving_process

NUM_ATTACKERS = 8
# One-token chats before the attack begins. A p99 needs this many.
QUIET_CHATS = 1000
# Replies with these statuses may be sent for any request; each is documented with its code.
DECLARED = ("503",)
MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to attack, after how many quiet chats, the seconds without work of the engine after which an open
    exchange counts as a hang, the seconds between two faults of a process (0: no faults), and how much lower the
    priority of the attackers' process is."""

    seed: int
    seconds: float
    quiet_chats: int = QUIET_CHATS
    hang_s: float = HANG_S
    fault_every_s: float = 0.0
    attacker_nice: int = 0


@dataclass
class Observed:
    """Everything that was seen, filled while the attack runs."""

    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    undeclared: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    quiet_chat_s: list[float] = field(default_factory=list)
    chat_s: list[float] = field(default_factory=list)
    chat_failures: Counter[str] = field(default_factory=Counter)
    health_s: list[float] = field(default_factory=list)
    not_ready: Counter[str] = field(default_factory=Counter)
    rss_mb: list[float] = field(default_factory=list)
    # Of the server and all processes below it.
    tree_rss_mb: list[float] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def note(self, name: str, exchange: Exchange) -> None:
        counts = self.statuses.setdefault(name, Counter())
        counts.update(exchange.replies or ["closed"])
        self.undeclared += [f"{name}: {reply}" for reply in exchange.replies if is_undeclared(reply)]
        self.hangs += [name] if exchange.hung else []


def is_undeclared(reply: str) -> bool:
    return reply.startswith("5") and not reply.startswith(DECLARED)


async def attack(rng: random.Random, target: Target, observed: Observed, until: float) -> None:
    attacks, weights = list(ATTACKS), list(ATTACKS.values())
    while time.monotonic() < until:
        (chosen,) = rng.choices(attacks, weights)
        try:
            observed.note(chosen.__name__, await chosen(rng, target))
        except OSError as error:
            observed.note(chosen.__name__, Exchange((f"refused {type(error).__name__}",)))


async def chat(client: httpx.AsyncClient, headers: dict[str, str], seconds: list[float], failed: Counter[str]) -> None:
    """One token for a well-behaved tenant."""
    body = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    started = time.perf_counter()
    try:
        reply = await client.post(CHAT, json=body, headers=headers)
        if reply.status_code != 200:
            failed[f"{reply.status_code} {reply.json()['error']['code']}"] += 1
    except httpx.HTTPError as error:
        failed[type(error).__name__] += 1
    seconds.append(time.perf_counter() - started)


async def probe(client: httpx.AsyncClient, observed: Observed) -> None:
    started = time.perf_counter()
    try:
        assert (await client.get("/health")).status_code == 200
    except httpx.HTTPError as error:
        observed.undeclared.append(f"/health: {type(error).__name__}")
    observed.health_s.append(time.perf_counter() - started)


async def look(client: httpx.AsyncClient, pid: int, observed: Observed) -> None:
    """Readiness and memory, once."""
    reply = await client.get("/ready")
    if reply.status_code != 200:
        observed.not_ready[reply.json()["status"]] += 1
    tree = await asyncio.to_thread(process_tree, pid)
    observed.rss_mb.append(next(process.rss_mb for process in tree if process.pid == pid))
    observed.tree_rss_mb.append(sum(process.rss_mb for process in tree))


async def disturb(plan: Plan, pid: int, observed: Observed, until: float) -> None:
    """Faults of processes, one after another."""
    rng = random.Random(f"{plan.seed}/faults")
    while plan.fault_every_s and time.monotonic() + plan.fault_every_s < until:
        await asyncio.sleep(plan.fault_every_s)
        fault = await inject(rng, pid, plan.hang_s)
        observed.faults += [fault] if fault is not None else []


async def repeat(work: Callable[[], Any], pause_s: float, until: float) -> None:
    while time.monotonic() < until:
        await work()
        await asyncio.sleep(pause_s)


async def watch(plan: Plan, url: str, pid: int, neighbour: dict[str, str], observed: Observed, until: float) -> None:
    async with AsyncExitStack() as stack:
        made = [httpx.AsyncClient(base_url=url, timeout=plan.hang_s) for _ in range(3)]
        clients = [await stack.enter_async_context(client) for client in made]
        await asyncio.gather(
            repeat(lambda: chat(clients[0], neighbour, observed.chat_s, observed.chat_failures), 0.2, until),
            repeat(lambda: probe(clients[1], observed), 0.05, until),
            repeat(lambda: look(clients[2], pid, observed), 1.0, until),
        )


@asynccontextmanager
async def engine_work(url: str, headers: dict[str, str]) -> AsyncIterator[EngineWork]:
    """What the engine does, kept up to date from the metrics at `url`."""
    work = EngineWork()
    async with httpx.AsyncClient(base_url=url) as client:
        following = asyncio.create_task(work.follow(client, headers))
        try:
            yield work
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def run(url: str, admin_url: str, pid: int, keys: list[dict[str, str]], plan: Plan) -> Observed:
    observed = Observed()
    attacker, neighbour, metrics = keys
    async with httpx.AsyncClient(base_url=url, timeout=plan.hang_s) as client:
        for _ in range(plan.quiet_chats):
            await chat(client, neighbour, observed.quiet_chat_s, Counter())
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, initializer=os.nice, initargs=(plan.attacker_nice,)) as attackers:
            port = int(url.rpartition(":")[2])
            loop = asyncio.get_running_loop()
            attacking = loop.run_in_executor(attackers, attack_all, port, attacker, admin_url, metrics, plan)
            until = time.monotonic() + plan.seconds
            watching = watch(plan, url, pid, neighbour, observed, until)
            seen, *_ = await asyncio.gather(attacking, watching, disturb(plan, pid, observed, until))
        observed.statuses = seen.statuses
        observed.undeclared += seen.undeclared
        observed.hangs += seen.hangs
        await settle(client, observed)
    return observed


def attack_all(port: int, key: dict[str, str], admin_url: str, metrics: dict[str, str], plan: Plan) -> Observed:
    """All attackers at once, in this process."""

    async def attack_together() -> Observed:
        observed, until = Observed(), time.monotonic() + plan.seconds
        async with engine_work(admin_url, metrics) as work:
            target = Target(port, key, plan.hang_s, work)
            rngs = [random.Random(f"{plan.seed}/{i}") for i in range(NUM_ATTACKERS)]
            await asyncio.gather(*(attack(rng, target, observed, until) for rng in rngs))
        return observed

    return asyncio.run(attack_together())


async def settle(client: httpx.AsyncClient, observed: Observed) -> None:
    """Waits until nothing is left of the attack."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        reply = await client.get("/ready")
        if reply.status_code == 200 and not (reply.json()["running"] or reply.json()["waiting"]):
            return
        await asyncio.sleep(0.5)
    observed.hangs.append("not ready and idle at the end")


def make_key(admin: AdminService, name: str, scope: Scope = Scope.INFERENCE) -> dict[str, str]:
    org = admin.organizations.create_org(OPERATOR, name)
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    draft = KeyDraft("key", project.id, scopes=frozenset({scope, Scope.USAGE}))
    return {"authorization": f"Bearer {admin.keys.create_key(OPERATOR, draft).secret}"}


def ledger_faults(admin: AdminService) -> list[str]:
    """Accounts that do not add up, and reservations that stay open."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        accounts = admin.organizations.list_accounts(OPERATOR, "org")
        held = [f"{account.name}: {account.reserved} reserved" for account in accounts if account.reserved]
        if not held:
            break
        time.sleep(0.5)
    return [*map(str, audit(admin.store)), *held]


def attack_server(home: Path, plan: Plan) -> dict[str, Any]:
    """Starts a server, attacks it, stops it, and returns the report."""
    database, pepper = f"sqlite:///{home}/accounts.db", home / "pepper"
    flags = ("--accounts", "--database-url", database, "--pepper", str(pepper), "--log-level", "warning")
    admin_port = free_port()
    with serving_process(home / "server.log", *flags, "--admin-port", str(admin_port)) as (url, pid):
        admin = open_admin(database, AccountsConfig(pepper_path=pepper))
        try:
            keys = [make_key(admin, name) for name in ("attacker", "neighbour")]
            keys.append(make_key(admin, "operator", Scope.METRICS))
            observed = asyncio.run(run(url, f"http://127.0.0.1:{admin_port}", pid, keys, plan))
            return report(observed, plan, ledger_faults(admin))
        finally:
            admin.store.close()


def report(observed: Observed, plan: Plan, faults: list[str]) -> dict[str, Any]:
    not_replaced = [f"{fault.kind} {fault.signal}" for fault in observed.faults if fault.seconds is None]
    # A well-behaved tenant may be refused while a process is replaced, and is never left without an answer.
    unanswered = [f"neighbour: {reason}" for reason in observed.chat_failures if not reason.startswith(DECLARED)]
    hangs = observed.hangs + unanswered
    quiet, chat = quantiles(observed.quiet_chat_s), quantiles(observed.chat_s)
    return {
        "seed": plan.seed,
        "seconds": plan.seconds,
        "hang_s": plan.hang_s,
        "attacker_nice": plan.attacker_nice,
        "neighbour_p99_over_quiet": round(chat["p99"] / quiet["p99"], 2) if quiet["p99"] else None,
        "exchanges": sum(counts.total() for counts in observed.statuses.values()),
        "statuses": {name: dict(counts.most_common()) for name, counts in sorted(observed.statuses.items())},
        "undeclared_5xx": len(observed.undeclared),
        "undeclared_examples": observed.undeclared[:MAX_EXAMPLES],
        "hangs": hangs[:MAX_EXAMPLES],
        "neighbour_quiet_ms": quiet,
        "neighbour_ms": chat,
        "neighbour_failures": dict(observed.chat_failures),
        "health_ms": quantiles(observed.health_s),
        "not_ready_samples": dict(observed.not_ready),
        "rss_mb": memory(observed.rss_mb),
        "tree_rss_mb": memory(observed.tree_rss_mb),
        "replaced_after_s": replacements(observed.faults),
        "not_replaced": not_replaced,
        "ledger_faults": faults[:MAX_EXAMPLES],
        "is_sound": not (observed.undeclared or hangs or faults or not_replaced),
    }


def replacements(faults: list[Fault]) -> dict[str, list[float]]:
    """Seconds until a process was replaced, by its kind and the signal that it got."""
    found: dict[str, list[float]] = {}
    for fault in faults:
        if fault.seconds is not None:
            found.setdefault(f"{fault.kind} {fault.signal}", []).append(fault.seconds)
    return found


def memory(rss_mb: list[float]) -> dict[str, float]:
    """Medians of the second and of the last quarter of the run: the first quarter is the warm-up. Single samples
    contain bodies in flight."""
    quarter = max(len(rss_mb) // 4, 1)
    warm, last = (statistics.median(part) for part in (rss_mb[quarter : 2 * quarter] or rss_mb, rss_mb[-quarter:]))
    return {
        "warm": round(warm, 1),
        "last": round(last, 1),
        "largest": round(max(rss_mb), 1),
        "growth": round(last / warm - 1, 3),
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    found = {name: ordered[min(len(ordered) - 1, int(len(ordered) * place))] for name, place in places.items()}
    return {"num": float(len(seconds)), **{name: round(value * 1000, 1) for name, value in found.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a server with a seeded mixture and report what was seen.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault-every", type=float, default=0.0, help="seconds between two faults of a process")
    parser.add_argument("--attacker-nice", type=int, default=0, help="niceness of the attackers' process")
    parser.add_argument("--quiet-chats", type=int, default=QUIET_CHATS, help="chats before the attack")
    parser.add_argument("--report", type=Path, help="file for the JSON report; standard output without it")
    options = parser.parse_args()
    plan = Plan(
        options.seed,
        options.minutes * 60,
        quiet_chats=options.quiet_chats,
        fault_every_s=options.fault_every,
        attacker_nice=options.attacker_nice,
    )
    with tempfile.TemporaryDirectory() as home:
        result = attack_server(Path(home), plan)
    text = json.dumps({"runs": [{**machine_facts(), "minutes": options.minutes, **result}]}, indent=1)
    if options.report:
        options.report.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    return 0 if result["is_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
