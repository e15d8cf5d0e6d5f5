"""What the ledger costs a request, and how many settlements it takes a second.

    python benchmarks/ledger.py                                    # a new SQLite file
    python benchmarks/ledger.py --url postgresql://user@host/name  # an empty database

Goes through `Accounts`, threads and fsync included. Writes a dated JSON into benchmarks/results/ and prints it.
On a machine that does other work too, start it with `chrt -r 1`: else the scheduler's slices are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Identity
from quicksilver.accounts.records import KeyDraft, Limits, Order
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.core import Usage

USAGE = Usage(100, 40, 60)
NUM_ORGS = 8


def make_customers(admin: AdminService) -> list[str]:
    """Keys of several organisations with typical rate limits."""
    secrets = []
    for number in range(NUM_ORGS):
        org = admin.organizations.create_org(OPERATOR, f"org {number}", 10**12)
        project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
        draft = KeyDraft("key", project.id, limits=Limits(10**6, 10**9, 10**9, 10**6))
        secrets.append(admin.keys.create_key(OPERATOR, draft).secret)
    return secrets


async def one_at_a_time(accounts: Accounts, who: Identity, count: int) -> dict[str, float]:
    """Latency that the ledger adds to a request without other load."""
    took = []
    cpu = time.process_time()
    for number in range(count):
        begun = time.perf_counter()
        await accounts.reserve(who, Order(f"{who.key_id}-{number}", "nano", 100, 100))
        await accounts.settle(f"{who.key_id}-{number}", USAGE)
        took.append((time.perf_counter() - begun) * 1000)
    cuts = statistics.quantiles(took, n=100)
    cpu_ms = (time.process_time() - cpu) * 1000 / max(1, count)
    return {"p50_ms": cuts[49], "p90_ms": cuts[89], "p99_ms": cuts[98], "cpu_ms": cpu_ms}


async def settle_many(accounts: Accounts, who: list[Identity], count: int) -> float:
    """Settlements per second over open reservations, all requested at once."""
    ids = [f"many-{number}" for number in range(count)]
    orders = [(who[number % len(who)], Order(request_id, "nano", 100, 100)) for number, request_id in enumerate(ids)]
    await asyncio.gather(*(accounts.reserve(*order) for order in orders))
    begun = time.perf_counter()
    await asyncio.gather(*(accounts.settle(request_id, USAGE) for request_id in ids))
    return count / (time.perf_counter() - begun)


async def serve_many(accounts: Accounts, who: list[Identity], count: int, in_flight: int) -> float:
    """Complete requests per second: reserve, two checkpoints, settle."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            request_id = f"serve-{in_flight}-{number}"
            await accounts.reserve(who[number % len(who)], Order(request_id, "nano", 100, 100))
            await accounts.checkpoint(request_id, 16)
            await accounts.checkpoint(request_id, 32)
            await accounts.settle(request_id, USAGE)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return count / (time.perf_counter() - begun)


async def measure(url: str, config: AccountsConfig, count: int) -> dict[str, object]:
    accounts = await Accounts.open(url, config)
    secrets = await accounts.admin(make_customers)
    who = [await accounts.authenticate(secret) for secret in secrets]
    await one_at_a_time(accounts, who[0], 100)  # warm-up
    figures = {
        "request_alone": await one_at_a_time(accounts, who[1], count),
        "settles_per_s": await settle_many(accounts, who, count * 4),
        "requests_per_s_64_in_flight": await serve_many(accounts, who, count * 2, 64),
    }
    await accounts.close()
    return figures


def describe(url: str, count: int) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "benchmark": "ledger",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "database": url.split(":")[0],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        "settings": {"count": count, "organisations": NUM_ORGS, "is_realtime": os.sched_getscheduler(0) != 0},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="database; default: a new SQLite file")
    parser.add_argument("--count", type=int, default=1000, help="requests measured one at a time")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = args.url or f"sqlite:///{folder}/books.db"
        report = describe(url, args.count)
        config = AccountsConfig(pepper_path=Path(folder) / "pepper")
        report |= asyncio.run(measure(url, config, args.count))
    text = json.dumps(report, indent=1)
    args.results.mkdir(exist_ok=True)
    (args.results / f"ledger-{report['database']}-{report['date']}.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
