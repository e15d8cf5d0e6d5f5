"""The room's settings: one frozen record, built once by the caller and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quicksilver.accounts.records import Limits, Price


@dataclass(frozen=True, slots=True)
class AccountsConfig:
    """How the books are kept. Every default is safe for a single machine with SQLite."""

    pepper_path: Path | None = None
    """Secret file (0600) that keys the hashes of API keys. None: beside the SQLite file; required for PostgreSQL."""
    signup_credits: int = 10_000_000
    """Whole credits a new organisation starts with; at the default price one credit buys one token."""
    default_price: Price = field(default_factory=lambda: Price(input=1_000_000, cached=100_000, output=1_000_000))
    """Price of a model that has none of its own."""
    key_limits: Limits = field(default_factory=lambda: Limits(concurrency=64))
    """Limits of a new key for which none are named."""
    auth_cache_s: float = 0.4
    """How long a key lookup is remembered; revocation of unpaid calls takes effect within it."""
    lock_wait_s: float = 4.0
    """How long a locked database is waited for before paid calls are refused."""
    heartbeat_s: float = 1.0
    """Seconds between signs of life of this process; the same in all processes that share a database."""
    patience: int = 4
    """Heartbeats another process may miss before its open reservations are closed for it."""
    reply_kept_s: int = 86_400
    """How long the reply to an idempotent request can be had again."""
    batch_size: int = 256
    """Ledger entries that may share one transaction."""
    num_readers: int = 2
    """Threads for lookups that write nothing."""
