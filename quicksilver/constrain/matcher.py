"""llguidance behind `core.TokenConstraint`: the automaton of one request, and the factory that the engine is given.

Validate before consume; look ahead and roll back; an automaton that fails fails its own request. Bitmask rows have the
width of the model's logits, whatever the tokenizer's vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.budget import Budget
from quicksilver.constrain.digits import Bits
from quicksilver.constrain.proof import LIMITS
from quicksilver.constrain.tokens import Tokens
from quicksilver.core import ConstraintSpec
from quicksilver.errors import RowFailed

MAX_CACHED = 64
MAX_CACHED_BYTES = 16 * 1024 * 1024
"""Of grammar text; the automata behind it take a small multiple of that."""
MAX_SPELLINGS = 32
"""Words of a bitmask beyond which it is not asked whether all its tokens spell the same bytes."""


class Grammars:
    """Makes constraints for one tokenizer, and keeps the automata of recent grammars. Safe to share between threads."""

    def __init__(self, tokenizer_json: str, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._tokens = Tokens(tokenizer_json, eos_ids, vocab_size)
        self._cache: OrderedDict[str, tuple[LLMatcher, LLMatcher]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()

    def constraint(self, spec: ConstraintSpec) -> Constraint:
        """A fresh automaton. A new grammar takes as long to build as its check took, without the interpreter's lock;
        a grammar seen lately takes microseconds."""
        with self._lock:
            pair = self._cache.get(spec.grammar)
        if pair is None:
            pair = self._build(spec.grammar)
        self._remember(spec.grammar, pair)
        matcher, byte_matcher = pair
        return Constraint(self._tokens, matcher.deep_copy(), Budget(self._tokens, byte_matcher.deep_copy()))

    def _build(self, grammar: str) -> tuple[LLMatcher, LLMatcher]:
        matcher = LLMatcher(self._tokens.tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise RowFailed(f"the grammar cannot be built for this tokenizer: {matcher.get_error()[:300]}")
        return matcher, LLMatcher(self._tokens.alphabet.tokenizer, grammar, log_level=0, limits=LIMITS)

    def _remember(self, grammar: str, pair: tuple[LLMatcher, LLMatcher]) -> None:
        with self._lock:
            if grammar not in self._cache:
                self._cache[grammar] = pair
                self._cached_bytes += len(grammar)
            self._cache.move_to_end(grammar)
            while len(self._cache) > MAX_CACHED or (self._cached_bytes > MAX_CACHED_BYTES and len(self._cache) > 1):
                dropped, _ = self._cache.popitem(last=False)
                self._cached_bytes -= len(dropped)


class Constraint:
    """A `TokenConstraint`. Ends for good with a stop token."""

    def __init__(self, tokens: Tokens, matcher: LLMatcher, budget: Budget) -> None:
        self._tokens = tokens
        self._matcher = matcher
        self._budget = budget
        self._tail = b""
        self._has_ended = False

    def copy(self) -> Constraint:
        twin = Constraint(self._tokens, self._matcher.deep_copy(), self._budget.copy())
        twin._tail, twin._has_ended = self._tail, self._has_ended
        return twin

    def forced(self) -> list[int]:
        forced: list[int] = []
        try:
            while not self._has_ended and not self._matcher.is_stopped() and (step := self._determined()):
                self._matcher.consume_tokens(step)
                forced += step
        finally:
            self._matcher.rollback(len(forced))
        self._check()
        return forced

    def _determined(self) -> list[int]:
        """Tokens that come next whatever is chosen later."""
        step = self._matcher.compute_ff_tokens()
        if step:
            return step
        only = self._longest_spelling(self._bits())
        return [] if only is None else [only]

    def _longest_spelling(self, bits: Bits) -> int | None:
        """Where the next bytes are certain and only their cut into tokens is open: the longest piece."""
        certain = self._matcher.compute_ff_bytes()
        if not certain:
            return None
        words = np.flatnonzero(bits)
        if len(words) > MAX_SPELLINGS:
            return None
        flags = np.unpackbits(bits[words].view(np.uint8).reshape(len(words), 4), axis=1, bitorder="little")
        ids = [int(words[i]) * 32 + int(j) for i, j in np.argwhere(flags)]
        texts = [self._tokens.text(token_id) for token_id in ids]
        if not all(text and certain.startswith(text) for text in texts):
            return None
        return ids[max(range(len(ids)), key=lambda i: len(texts[i]))]

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        rows = np.asarray(out).reshape(-1, self._tokens.num_words)
        if self._has_ended:
            rows[0] = self._tokens.end_bits
            return 1
        num_taken, tail = 0, self._tail
        try:
            for token_id in [*ahead[: len(rows) - 1], None]:
                self._fill(rows[num_taken], tail)
                if token_id is None or token_id in self._tokens.eos_ids or not self._takes(token_id, tail):
                    break
                tail = self._tokens.extend(tail, token_id)
                num_taken += 1
        finally:
            self._matcher.rollback(num_taken)
        self._check()
        return num_taken + 1

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        if self._has_ended:
            return 0
        num_text = next((i for i, token_id in enumerate(tokens) if token_id in self._tokens.eos_ids), len(tokens))
        num_taken, tail = 0, self._tail
        try:
            while num_taken < num_text and self._takes(tokens[num_taken], tail):
                tail = self._tokens.extend(tail, tokens[num_taken])
                num_taken += 1
            may_end = num_taken == num_text < len(tokens) and self._matcher.is_accepting()
        finally:
            self._matcher.rollback(num_taken)
        self._check()
        affordable = self._budget.affordable(tokens[:num_taken])
        return num_taken + 1 if may_end and affordable == num_taken else affordable

    def advance(self, tokens: Sequence[int]) -> None:
        for token_id in tokens:
            if token_id in self._tokens.eos_ids and self.can_stop():
                self._has_ended = True
            elif self._has_ended or not self._matcher.consume_token(token_id):
                raise RowFailed(f"token {token_id} does not fit the grammar")
            else:
                self._tail = self._tokens.extend(self._tail, token_id)
                self._budget.advance(token_id)

    def can_stop(self) -> bool:
        return self._has_ended or self._matcher.is_accepting()

    def must_stop(self) -> bool:
        self._check()
        return self._has_ended or self._matcher.is_stopped()

    def closing(self, room: int) -> list[int] | None:
        """See `Budget`: this also tells how much room is left, which `legal_prefix` then respects. An empty list means
        that the text is complete and nothing else fits."""
        if self._has_ended:
            return None
        path = self._budget.closing(room)
        return None if path is None or self._matcher.validate_tokens(path) < len(path) else path

    def _takes(self, token_id: int, tail: bytes) -> bool:
        """Consumes one token if grammar and guard allow it."""
        if not 0 <= token_id < self._tokens.vocab_size or self._is_overlong(token_id, tail):
            return False
        return self._matcher.try_consume_tokens([token_id]) == 1

    def _is_overlong(self, token_id: int, tail: bytes) -> bool:
        if not self._tokens.guard.exceeds(tail, token_id):
            return False
        row = self._bits()
        self._keep_short(row, tail)
        return not row[token_id >> 5] >> (token_id & 31) & 1

    def _fill(self, row: Bits, tail: bytes) -> None:
        """One bitmask row for the present state."""
        row[:] = self._bits()
        only = self._longest_spelling(row)
        if only is not None:
            row[:] = 0
            row[only >> 5] = np.uint32(1 << (only & 31)).view(np.int32)
            return
        self._keep_short(row, tail)

    def _keep_short(self, row: Bits, tail: bytes) -> None:
        """Takes out tokens that would make a number too long, unless nothing else is lawful."""
        banned = self._tokens.guard.too_long(tail)
        if banned is None or self._tokens.allows_letter(row):
            return
        kept = row & ~banned
        if kept.any():
            row[:] = kept

    def _bits(self) -> Bits:
        """What the automaton allows, as wide as the logits."""
        full = self._tokens.scratch
        self._matcher.unsafe_compute_mask_ptr(full.ctypes.data, full.nbytes)
        return full[: self._tokens.num_words] & self._tokens.width_bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RowFailed(f"the grammar's automaton failed: {self._matcher.get_error()[:300]}")
