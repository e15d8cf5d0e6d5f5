"""Settings of the accounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quicksilver.accounts.records import Limits, Price


@dataclass(frozen=True, slots=True)
class AccountsConfig:
    """Settings of the accounts. The defaults suit a single machine with SQLite."""

    # Secret file (mode 0600) that keys the hashes of API keys. None: next to the SQLite file. PostgreSQL needs one.
    pepper_path: Path | None = None
    # Whole credits of a new organisation. At the default price one credit buys one token.
    signup_credits: int = 10_000_000
    # Price of a model without a price of its own.
    default_price: Price = field(default_factory=lambda: Price(input=1_000_000, cached=100_000, output=1_000_000))
    # Limits of a new organisation, for all its keys together.
    org_limits: Limits = field(default_factory=lambda: Limits(concurrency=256))
    # Limits of a new key that is created without limits. By default those of its organisation and project suffice.
    key_limits: Limits = field(default_factory=Limits)
    # Cache time of a key lookup. Unpaid calls of a revoked key are refused after at most this long, paid ones at once.
    auth_cache_s: float = 0.4
    # Wait for a locked database before paid calls are refused.
    lock_wait_s: float = 4.0
    # Seconds between two heartbeats; the same in all processes that share a database.
    heartbeat_s: float = 1.0
    # Heartbeats that a process may miss before another one closes its open reservations.
    patience: int = 4
    # How long the reply of an idempotent request is kept.
    reply_kept_s: int = 86_400
    # Ledger entries that may share one transaction.
    batch_size: int = 256
    # Threads for lookups.
    num_readers: int = 2
