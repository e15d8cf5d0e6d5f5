from __future__ import annotations

from collections import Counter, deque
from random import Random

from quicksilver.cluster.routing.affinity import Replica, digest, first_choice, max_load, prefix_key, rank

NAMES = ("a:1", "b:1", "c:1", "d:1")
KEYS = [str(i).encode() for i in range(2000)]


def idle(*names: str) -> list[Replica]:
    return [Replica(name) for name in names]


def test_choice_does_not_depend_on_the_order_of_replicas() -> None:
    for key in KEYS[:100]:
        assert rank([key], idle(*NAMES))[0] == rank([key], idle(*reversed(NAMES)))[0]


def test_removing_a_replica_moves_only_its_own_keys() -> None:
    before = {key: first_choice(key, NAMES) for key in KEYS}
    after = {key: first_choice(key, NAMES[:3]) for key in KEYS}
    assert all(after[key] == before[key] for key in KEYS if before[key] != NAMES[3])
    assert {after[key] for key in KEYS if before[key] == NAMES[3]} == set(NAMES[:3])


def test_keys_are_spread_evenly() -> None:
    counts = Counter(first_choice(key, NAMES) for key in KEYS)
    assert all(0.8 < counts[name] / (len(KEYS) / len(NAMES)) < 1.2 for name in NAMES)


def test_every_replica_is_ranked_once_and_the_rest_by_load() -> None:
    key = KEYS[0]
    favourite = first_choice(key, NAMES)
    loads = {name: 3 - i for i, name in enumerate(n for n in NAMES if n != favourite)} | {favourite: 3}
    names = rank([key], [Replica(name, loads[name]) for name in NAMES])
    assert names[0] == favourite
    assert sorted(names) == sorted(NAMES)
    assert [loads[name] for name in names[1:]] == [1, 2, 3]


def test_overloaded_replica_is_skipped_for_the_next_key_then_for_the_least_loaded() -> None:
    first = KEYS[0]
    full = first_choice(first, NAMES)
    second = next(key for key in KEYS if first_choice(key, NAMES) != full)
    replicas = [Replica(name, 40 if name == full else 4 - i) for i, name in enumerate(NAMES)]
    assert rank([first, second], replicas)[0] == first_choice(second, NAMES)
    least = min((r for r in replicas), key=lambda replica: replica.load).name
    assert rank([first], replicas)[0] == least
    assert rank([first], replicas)[-1] == full


def test_load_limit_is_a_quarter_and_two_requests_over_the_mean() -> None:
    assert max_load([4, 4]) == 7
    assert rank([KEYS[0]], [Replica(first_choice(KEYS[0], NAMES[:2]), 0), *idle("x")])


def test_no_replicas_have_no_rank() -> None:
    assert rank(KEYS[:1], []) == []


def test_without_keys_the_least_loaded_is_first_and_ties_vary() -> None:
    assert rank([], [Replica("a", 2), Replica("b", 1)])[0] == "b"
    assert len({rank([], idle(*NAMES), bytes([i]))[0] for i in range(50)}) == len(NAMES)


def test_prefix_key_hashes_the_most_leading_pages_that_are_full() -> None:
    text = bytes(range(256)) * 8
    for num_pages in (1, 4, 16):
        content = text[: num_pages * 64]
        assert prefix_key(b"", content, 64) == prefix_key(b"", content + b"tail", 64) == digest(b"", content)
    assert prefix_key(b"", text[: 5 * 64], 64) == prefix_key(b"", text[: 15 * 64], 64)
    assert prefix_key(b"", text[: 16 * 64], 64) != prefix_key(b"", text[: 15 * 64], 64)
    assert prefix_key(b"", text[:63], 64) is None
    assert prefix_key(b"one", text, 64) != prefix_key(b"two", text, 64)


def test_hot_prefixes_are_spread_by_the_load_guard_and_stay_together_otherwise() -> None:
    """8 prefixes, 40 requests each, 16 open at a time: no replica has more than 1.6 times the mean, and nearly all
    requests of a prefix find a replica that has seen it."""
    random = Random(7)
    requests = [prefix for prefix in range(8) for _ in range(40)]
    random.shuffle(requests)
    open_at: deque[str] = deque(maxlen=16)
    served: Counter[str] = Counter()
    seen: set[tuple[int, str]] = set()
    num_cached = 0
    for prefix in requests:
        loads = Counter(open_at)
        name = rank([digest(b"", bytes([prefix]))], [Replica(n, loads[n]) for n in NAMES], random.randbytes(4))[0]
        open_at.append(name)
        served[name] += 1
        num_cached += (prefix, name) in seen
        seen.add((prefix, name))
    assert max(served.values()) <= 1.6 * len(requests) / len(NAMES)
    assert num_cached / (len(requests) - 8) >= 0.9
