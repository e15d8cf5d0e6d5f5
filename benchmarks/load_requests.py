"""Engine requests of the load measurements, for `load.py --engine` and `--socket`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from benchmarks.load_prompts import SCHEMAS, SYSTEM, text_of
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.core import ConstraintSpec, DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.hub.resolve import ModelFiles
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer


@dataclass
class RequestSource:
    """Requests with the tokenizer and the template of a model. Their ids are unique."""

    tokenizer: Tokenizer
    template: ChatTemplate
    grammars: list[ConstraintSpec]
    decoder: DecoderParams
    _tickets: int = 0

    @classmethod
    def of_model(cls, files: ModelFiles, options: Any) -> RequestSource:
        tokenizer = Tokenizer.for_model(files.weights, files.skill)
        forms = [ResponseFormat(FormatKind.JSON_SCHEMA, schema) for schema in SCHEMAS]
        grammars = [compile_response_format(form) for form in forms]
        decoder = DecoderParams(DecoderName(options.decoder), 1 if options.decoder == "ar" else 16)
        return cls(tokenizer, ChatTemplate.for_tokenizer(tokenizer), grammars, decoder)

    def request(self, kind: str, index: int, max_tokens: int, has_schema: bool = False) -> Request:
        self._tickets += 1
        turns = [Message("system", SYSTEM), Message("user", text_of(kind, index, self._tickets))]
        rendered = self.template.render(turns)
        stop_ids = self.tokenizer.eos_ids
        banned = tuple(sorted(self.tokenizer.mute_ids - set(stop_ids)))
        params = DecodeParams(max_tokens, stop_ids=stop_ids, banned_ids=banned, decoder=self.decoder)
        grammar = self.grammars[index % len(self.grammars)] if has_schema else None
        return Request(f"r{self._tickets}", tuple(rendered.ids), params, constraint=grammar)

    def mixed(self, count: int, kinds: tuple[str, ...], max_tokens: int, has_schema: bool = False) -> list[Request]:
        """`count` requests, of the kinds in turn."""
        return [
            self.request(kinds[i % len(kinds)], i // len(kinds), max_tokens, has_schema) for i in range(count)
        ]  # fmt: skip

    def long_request(self, num_tokens: int) -> Request:
        self._tickets += 1
        rng = random.Random(self._tickets)
        words = self.tokenizer.encode("the quick brown fox jumps over a lazy dog while rain falls on seven green hills")
        ids = tuple(rng.choice(words) for _ in range(num_tokens))
        return Request(f"r{self._tickets}", ids, DecodeParams(8, decoder=self.decoder))
