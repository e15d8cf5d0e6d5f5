"""rank: the order in which replicas are tried for a request, from hashes of its prompt and from their loads.

Requests whose prompts begin alike go to the same replica, whose prefix cache then holds the beginning. The choice has
no state: every router makes the same one, and a replica that is added or removed moves only its own share of the
prompts (rendezvous hashing). A replica with much more than the mean load is skipped, so a popular prefix cannot
overload one replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

# A replica is skipped if its load is over the mean by this share and this many requests.
EXTRA_SHARE, EXTRA_REQUESTS = 0.25, 2.0
# A prompt is identified by its leading pages: by the largest of these numbers of pages that it fills.
PREFIX_PAGES = (16, 4, 1)


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    # Requests that it has open.
    load: float = 0.0


def rank(keys: Sequence[bytes], replicas: Sequence[Replica], tie_breaker: bytes = b"") -> list[str]:
    """The names of all replicas, the best first. For each key in turn comes the replica with the highest weight,
    unless it is overloaded; then the rest by load. `tie_breaker` orders replicas of equal load."""
    if not replicas:
        return []
    limit = max_load([replica.load for replica in replicas])
    load_of = {replica.name: replica.load for replica in replicas}
    by_key = [first_choice(key, list(load_of)) for key in keys]
    by_load = sorted(load_of, key=lambda name: (load_of[name], weight(tie_breaker, name)))
    return list(dict.fromkeys([*(name for name in by_key if load_of[name] <= limit), *by_load]))


def first_choice(key: bytes, names: Sequence[str]) -> str:
    """The name with the highest weight."""
    return max(names, key=lambda name: weight(key, name))


def max_load(loads: Sequence[float]) -> float:
    """The load above which a replica is skipped."""
    return sum(loads) / len(loads) * (1 + EXTRA_SHARE) + EXTRA_REQUESTS


def weight(key: bytes, name: str) -> int:
    """A number that is uniform over keys and independent between replicas."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, key=blake2b(key, digest_size=32).digest()).digest())


def prefix_key(salt: bytes, content: bytes, page_bytes: int) -> bytes | None:
    """The hash of as many leading pages as `content` fills, of the numbers in PREFIX_PAGES; None without a full page.
    Requests with different salts share no prefix."""
    num_pages = next((num for num in PREFIX_PAGES if len(content) >= num * page_bytes), 0)
    return digest(salt, content[: num_pages * page_bytes]) if num_pages else None


def digest(salt: bytes, content: bytes) -> bytes:
    return blake2b(content, digest_size=16, key=blake2b(salt, digest_size=32).digest()).digest()
