"""`core.TokenConstraint` on llguidance: the automaton of one request, and the factory for the engine.

An automaton that fails raises RowFailed for its own request only. Bitmask rows have the width of the model's logits,
which may differ from the tokenizer's vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.compile.trial_compile import LIMITS, refusal_of
from quicksilver.constrain.runtime.budget import CompletionBudget
from quicksilver.constrain.runtime.canvas_masks import sweep
from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.constrain.runtime.literals import words_of
from quicksilver.constrain.runtime.lookahead import Lookahead
from quicksilver.constrain.runtime.mask_group import LlguidanceMasks
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.runtime.trial_walk import trial_walk
from quicksilver.constrain.runtime.unique import Matcher, guarded
from quicksilver.core import ConstraintSpec, TokenConstraint
from quicksilver.errors import RowFailed

MAX_CACHED = 64
# Bytes of grammar text; the automata take a small multiple of that.
MAX_CACHED_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Built:
    """The automata of a grammar over tokens and over bytes, which requests copy, and the literals in its patterns."""

    matcher: Matcher
    byte_matcher: Matcher
    words: tuple[bytes, ...]


class Grammars:
    """Creates constraints for one tokenizer; caches the automata of recent grammars. Safe to share between threads."""

    def __init__(self, tokenizer_json: str, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._tokens = Tokens(tokenizer_json, eos_ids, vocab_size)
        self._group = LlguidanceMasks.for_machine(self._tokens)
        self._prefixes = ForcedPrefixes(self._tokens.texts, vocab_size)
        self._automata: OrderedDict[str, _Built] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()

    def constraint(self, spec: ConstraintSpec) -> TokenConstraint:
        """A constraint at its start. A new grammar takes as long as its trial compile, without the GIL; a cached one
        takes microseconds. Raises InvalidGrammar if the automaton is too large for this vocabulary."""
        if spec.lead or spec.min_tokens:  # a spec without a grammar: a forced beginning, or a least length
            return self._prefixes.constraint(spec)
        with self._lock:
            built = self._automata.get(spec.grammar)
        if built is None:
            built = self._build(spec.grammar)
        self._keep(spec.grammar, built)
        budget = CompletionBudget(self._tokens, built.byte_matcher.deep_copy(), built.words)
        return GrammarConstraint(self._tokens, built.matcher.deep_copy(), budget, self._group)

    def _build(self, grammar: str) -> _Built:
        matcher = LLMatcher(self._tokens.tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise refusal_of(matcher.get_error())
        trial_walk(matcher.deep_copy(), self._tokens)
        byte_matcher = LLMatcher(self._tokens.alphabet.tokenizer, grammar, log_level=0, limits=LIMITS)
        quotes = self._tokens.quotes
        return _Built(guarded(matcher, grammar, quotes), guarded(byte_matcher, grammar, quotes), words_of(grammar))

    def _keep(self, grammar: str, built: _Built) -> None:
        with self._lock:
            if grammar not in self._automata:
                self._automata[grammar] = built
                self._cached_bytes += len(grammar)
            self._automata.move_to_end(grammar)
            while len(self._automata) > MAX_CACHED or (
                self._cached_bytes > MAX_CACHED_BYTES and len(self._automata) > 1
            ):
                dropped, _ = self._automata.popitem(last=False)
                self._cached_bytes -= len(dropped)


class GrammarConstraint:
    """A `core.TokenConstraint`. A stop token ends it."""

    def __init__(
        self, tokens: Tokens, matcher: Matcher, budget: CompletionBudget, group: LlguidanceMasks | None = None
    ) -> None:
        self._tokens = tokens
        self._budget = budget
        self.group = group
        self.lookahead = Lookahead(tokens, matcher)
        self.has_ended = False

    def copy(self) -> GrammarConstraint:
        twin = GrammarConstraint(self._tokens, self._matcher, self._budget.copy(), self.group)
        twin.lookahead, twin.has_ended = self.lookahead.copy(), self.has_ended
        return twin

    @property
    def _matcher(self) -> Matcher:
        return self.lookahead.matcher

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        if self.has_ended:
            return []
        is_legal = self.lookahead.reach(ahead) == len(ahead)
        forced = self.lookahead.forced(len(ahead)) if is_legal else []
        self.require_sound()
        return forced

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        rows = np.asarray(out).reshape(-1, self._tokens.num_words)
        if self.has_ended:
            rows[0] = self._tokens.end_bits
            return 1
        num_rows = self.lookahead.write(ahead, rows)
        self.require_sound()
        return num_rows

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        return sweep(self, canvas)

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        if self.has_ended:
            return 0
        num_taken = self.lookahead.reach(tokens)
        is_end = num_taken < len(tokens) and tokens[num_taken] in self._tokens.eos_ids
        may_end = is_end and self.lookahead.may_end(num_taken)
        self.require_sound()
        affordable = self._budget.affordable(tokens[:num_taken])
        return num_taken + 1 if may_end and affordable == num_taken else affordable

    def advance(self, tokens: Sequence[int]) -> None:
        start = 0
        for i, token_id in enumerate(tokens):
            if token_id not in self._tokens.eos_ids:
                continue
            self._commit(tokens[start:i])
            if self.can_stop():
                self.has_ended, start = True, i + 1
            else:
                start = i
        self._commit(tokens[start:])

    def _commit(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        num_taken = 0 if self.has_ended else self.lookahead.commit(tokens)
        if num_taken < len(tokens):
            raise RowFailed(f"token {tokens[num_taken]} does not fit the grammar")
        self._budget.advance(tokens)

    def can_stop(self) -> bool:
        return self.has_ended or self.lookahead.may_end(0)

    def must_stop(self) -> bool:
        self.require_sound()
        if self.has_ended:
            return True
        self.lookahead.move(0)
        return self._matcher.is_stopped()

    def closing(self, room: int) -> list[int] | None:
        """See `CompletionBudget`. The call also sets the number of remaining tokens for `legal_prefix`. An empty list
        means that the text is complete and nothing else fits."""
        if self.has_ended:
            return None
        path = self._budget.closing(room)
        if path is None:
            return None
        self.lookahead.move(0)
        return None if self._matcher.validate_tokens(path) < len(path) else path

    def is_over(self) -> bool:
        """A grammar constrains every token until the end, so never."""
        return False

    def require_sound(self) -> None:
        """Raises RowFailed if the automaton failed."""
        if self._matcher.is_error():
            raise RowFailed(f"the grammar's automaton failed: {self._matcher.get_error()[:300]}")
