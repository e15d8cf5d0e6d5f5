"""How a request is decoded (`DecoderParams`, exported by `core`), and the `Dialect` of a checkpoint. Standard library.

A dialect is how the checkpoints of a family predict masked positions: what their rows attend to, which position a row
predicts, the length of blocks, the mask token, and the decoders that work with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from quicksilver.errors import InvalidRequest

_Name = TypeVar("_Name", bound=StrEnum)


class DecoderName(StrEnum):
    """Decoding algorithms."""

    AR = "ar"  # one token per forward: `verify` with a canvas of one token
    VERIFY = "verify"  # drafts a canvas, then verifies it as speculative decoding does
    CONFIDENCE = "confidence"  # unmasks the positions that a commit rule selects
    EDIT = "edit"  # as `confidence`, and may still change decided positions (LLaDA2.1)
    WINDOW = "window"  # a window of positions that moves with the text (WeDLM)
    CANVAS = "canvas"  # a canvas of random tokens that is denoised as a whole (DiffusionGemma)


class CommitRule(StrEnum):
    """How `confidence` chooses the positions to commit; the rules are defined in `diffusion/unmask.py`."""

    THRESHOLD = "threshold"  # every position whose probability reaches `threshold`, at least one
    STATIC = "static"  # the same number of positions in each of `steps` steps, the most confident first
    DYNAMIC = "dynamic"  # as `threshold`, but in each step at least as many as an even share of `steps` steps
    FACTOR = "factor"  # the largest n, most confident first, with (n + 1) * (1 - n-th confidence) <= `factor`
    ENTROPY = "entropy"  # positions in order of entropy while their sum stays below `entropy_bound`


def _member(kind: type[_Name], value: str, param: str) -> _Name:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise InvalidRequest(f"unknown {param} {value!r}; the names are: {names}", param=param) from None


@dataclass(frozen=True, slots=True)
class DecoderParams:
    """A decoder and its parameters. A decoder ignores the fields of the others.

    `name` and `rule` may be given as strings, such as `"ar"`; an unknown one raises InvalidRequest.
    """

    name: DecoderName = DecoderName.VERIFY
    canvas_len: int = 16  # tokens predicted together

    # Parameters of `confidence`. `edit` also uses `threshold`, to fill masks.
    rule: CommitRule = CommitRule.THRESHOLD
    threshold: float = 0.9  # a masked position is decided if its confidence reaches this value
    steps: int = 8  # static and dynamic rule: forwards per canvas or block; `canvas`: the most forwards per canvas
    factor: float = 1.0  # factor rule
    entropy_bound: float = 0.1  # entropy rule, `window` and `canvas`: nats

    edit_threshold: float = 0.9  # `edit`: confidence above which a filled position is overwritten
    edit_passes: int = 16  # forwards allowed after the last mask is filled
    stutter_penalty: float = 2.0  # subtracted from the logit of the left neighbour's token, to avoid repeated words

    # Parameters of `canvas`.
    first_temperature: float = 0.8  # `canvas`: divides the logits of the first step; it falls linearly from there
    last_temperature: float = 0.4  # `canvas`: divides the logits of the last step
    stop_entropy: float = 0.005  # a canvas that did not change ends if its mean entropy is below; 0 never ends it

    def __post_init__(self) -> None:
        # Decoders are chosen by identity with an enum member, which a plain string does not have.
        object.__setattr__(self, "name", _member(DecoderName, self.name, "decoder"))
        object.__setattr__(self, "rule", _member(CommitRule, self.rule, "rule"))

    def for_decoder(self, name: DecoderName, others: Sequence[DecoderParams]) -> DecoderParams:
        """The parameters of a request that gives only the name of its decoder. `self` are those of the model's default
        decoder, `others` those of decoders that do not share them."""
        known = (self, *others)
        return next((params for params in known if params.name is name), replace(self, name=name))


_DEFAULT = DecoderParams()
# Decoders of a model with a canvas adapter.
ADAPTER_DECODERS = (DecoderName.AR, DecoderName.VERIFY, DecoderName.CONFIDENCE, DecoderName.EDIT)


class ContextKind(StrEnum):
    """What the row of a committed token attends to. Its KV can be kept once all tokens that it attends to are final."""

    CAUSAL = "causal"  # everything up to itself
    BLOCK = "block"  # everything up to the end of its block; blocks are counted from position 0
    FULL = "full"  # the whole text, masked positions included: no KV can be kept


@dataclass(frozen=True, slots=True)
class Dialect:
    """See the module. The default is an autoregressive model with a canvas adapter."""

    context: ContextKind = ContextKind.CAUSAL
    # The row of position p predicts token p + 1; otherwise it predicts token p.
    is_shifted: bool = True
    # Positions of a block, known ones included; 0: no blocks. With a full context: the most masks after the text.
    block_len: int = 0
    # Only the leftmost sub-block that has masks is filled; 0: the block.
    sub_block_len: int = 0
    # The first token of a block is predicted by the last context row, in a forward without masks.
    has_context_seed: bool = False
    # With a full context: the KV of the text before a sub-block is kept until the sub-block is filled, although it
    # depends on the tokens that are filled. Approximate.
    has_stale_prefix: bool = False
    # Blocks begin at the end of the prompt instead of position 0.
    is_prompt_aligned: bool = False
    # `verify` drafts with the last committed token as a row of the canvas. Each canvas row then predicts the token of
    # its own position.
    has_draft_seed: bool = False
    # A canvas row attends to the canvas up to itself, instead of to all of it.
    has_causal_canvas: bool = False
    # The token whose embedding stands for a masked position; None takes those of the canvas adapter.
    mask_id: int | None = None
    # A canvas begins as uniformly random tokens out of this many, instead of masks; 0: masks.
    noise_vocab: int = 0
    # Tokens that end an answer, in addition to those of the tokenizer.
    stop_ids: tuple[int, ...] = ()
    decoders: tuple[DecoderName, ...] = ADAPTER_DECODERS
    # Decoder of a request that names none.
    default: DecoderParams = _DEFAULT
    # Parameters of other decoders, where they are not those of the default one.
    others: tuple[DecoderParams, ...] = ()

    @property
    def has_blocks(self) -> bool:
        """Whether known tokens can be rows of the canvas, which then ends at the end of a block."""
        return self.block_len > 0

    @property
    def is_full(self) -> bool:
        """Whether every row attends to the whole text, so that a forward has either all rows of the text or, with a
        stale prefix, none before the sub-block."""
        return self.context is ContextKind.FULL

    @property
    def keeps_kv(self) -> bool:
        """Whether the KV of committed tokens is kept. With a full context each forward is over the whole text."""
        return not self.is_full or self.has_stale_prefix

    @property
    def page_multiple(self) -> int:
        """KV pages must have a multiple of this many tokens: the KV of a block depends on all its tokens."""
        return self.block_len if self.context is ContextKind.BLOCK else 1

    def block_start(self, num_tokens: int, num_prompt: int) -> int:
        """The first position of the block that the token after `num_tokens` tokens belongs to."""
        if self.is_full and not self.has_stale_prefix:
            return 0
        if self.is_full:
            filled = (num_tokens - num_prompt) // self.sub_block_len * self.sub_block_len
            # The row before the sub-block predicts its first token where predictions are shifted.
            return max(num_prompt + filled - self.is_shifted, 0)
        origin = num_prompt if self.is_prompt_aligned else 0
        return origin + (num_tokens - origin) // self.block_len * self.block_len

    def max_kept(self, num_tokens: int) -> int:
        """How many tokens may keep KV between two forwards; a last row that predicts the next token runs again."""
        is_causal = self.context is ContextKind.CAUSAL and not self.noise_vocab
        return num_tokens - 1 if is_causal or self.has_context_seed else num_tokens

    def num_kept(self, num_computed: int, num_tokens: int, num_prompt: int) -> int:
        """How many of the first `num_computed` tokens, whose KV was computed, keep it for the next forward. A stale
        prefix is computed again with every sub-block."""
        if self.has_stale_prefix and self.block_start(num_tokens, num_prompt) != num_computed:
            return 0
        return min(num_computed, self.max_kept(num_tokens))


AUTOREGRESSIVE = Dialect()
