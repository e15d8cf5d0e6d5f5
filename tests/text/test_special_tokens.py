from __future__ import annotations

import pytest

from quicksilver.text.special_tokens import RESERVED, Specials, find_roles, reserve_roles, reserved_for
from quicksilver.text.tokenizer import Tokenizer

_QWEN = {
    name: 151643 + i
    for i, name in enumerate(
        [
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
            *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
            *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
            *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
        ]
    )
}


def test_nano_reserves_a_token_of_its_own_for_every_role(tokenizer: Tokenizer) -> None:
    ids = dict(tokenizer.roles.named())
    assert ids.pop("turn_close") == tokenizer.eos_ids[0]
    assert len(set(ids.values())) == len(ids) == 14
    assert set(ids.values()) <= set(range(1, 17))


def test_qwen_keeps_its_own_tokens_and_lends_its_spare_ones() -> None:
    bare = find_roles(_QWEN, (151645,))
    assert (bare.fim_prefix, bare.fim_middle, bare.fim_suffix, bare.tool_open) == (151659, 151660, 151661, 151657)
    assert bare.think_open is None
    full = reserve_roles(bare, _QWEN)
    assert full.think_open == 151646
    assert (full.tool_open, full.fim_prefix) == (bare.tool_open, bare.fim_prefix)


def test_reservation_never_displaces_a_token_of_the_checkpoint() -> None:
    tokens = {**_QWEN, "<think>": 151667, "</think>": 151668}
    full = reserve_roles(find_roles(tokens, ()), tokens)
    assert (full.think_open, full.think_close) == (151667, 151668)
    assert full.edit_open == 151648


def test_tokenizer_without_spare_tokens_reserves_nothing() -> None:
    tokens = {"<s>": 1, "</s>": 2, "[MASK]": 3}
    roles = find_roles(tokens, (2,))
    assert reserved_for(tokens) is None
    assert reserve_roles(roles, tokens) == roles == Specials(eos_ids=(2,), mask_id=3)


def test_reservations_name_real_roles() -> None:
    for entry in RESERVED:
        assert len(set(entry.roles.values())) == len(entry.roles)
        assert dict(Specials().with_ids(dict.fromkeys(entry.roles, 7)).named()) == dict.fromkeys(
            sorted(entry.roles, key=list(Specials.__dataclass_fields__).index), 7
        )


@pytest.mark.parametrize("name", ["eos_ids", "no_such_role"])
def test_unknown_role_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Specials().with_ids({name: 1})


def test_gemma_thinks_in_a_channel_and_not_in_the_token_that_asks_for_it() -> None:
    names = ("<|think|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|turn>", "<turn|>")
    roles = find_roles({name: i for i, name in enumerate(names)}, (6,))
    assert (roles.think_open, roles.think_close) == (1, 2)
    assert (roles.tool_open, roles.tool_close) == (3, 4)
    assert (roles.turn_open, roles.turn_close) == (5, 6)
