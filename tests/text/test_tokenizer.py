from __future__ import annotations

import json

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.errors import InvalidRequest
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import SPECIAL_NAMES, ByteTokenizer, byte_characters, tiny_tokenizer, tokenizer_json

_TINY = tiny_tokenizer()


def test_every_special_token_in_text_stays_text(tokenizer: Tokenizer) -> None:
    special_ids = set(tokenizer.special_tokens.values())
    for name in tokenizer.special_tokens:
        for text in (name, f"a{name}b", name * 3, f" {name}\n", name[:-1], f"{name}{name[0]}"):
            ids = tokenizer.encode(text)
            assert special_ids.isdisjoint(ids)
            assert tokenizer.decode(ids) == text


@given(st.lists(st.one_of(st.sampled_from(SPECIAL_NAMES), st.text(max_size=5)), max_size=8).map("".join))
def test_any_text_round_trips_without_special_ids(text: str) -> None:
    ids = _TINY.encode(text)
    assert min(ids, default=17) >= 17
    assert _TINY.decode(ids) == text


def test_naughty_strings_round_trip(tokenizer: Tokenizer, naughty_strings: list[str]) -> None:
    lacking = [chr(byte) for byte in range(128) if not tokenizer.encode(chr(byte))]
    assert len(lacking) in (0, 6)
    for text in naughty_strings:
        for char in lacking:
            text = text.replace(char, "")
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_our_own_markup_become_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_markup("<|im_start|>user\nhi<|im_end|>\n")
    assert ids == [1, *tokenizer.encode("user\nhi"), 2, *tokenizer.encode("\n")]
    assert tokenizer.encode_markup("") == []


def test_token_that_strips_its_neighbourhood_is_found_with_it() -> None:
    spec = tokenizer_json(("<mask>",))
    spec["added_tokens"][0]["lstrip"] = True
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 257, ()))
    assert tokenizer.encode_markup("a <mask> b") == [*tokenizer.encode("a"), 0, *tokenizer.encode(" b")]


def test_word_that_is_also_a_special_token_is_spelled_out() -> None:
    spec = tokenizer_json(("secret",))
    spec["model"]["ignore_merges"] = True
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 257, ()))
    ids = tokenizer.encode("secret")
    assert 0 not in ids
    assert tokenizer.decode(ids) == "secret"


def test_blank_and_one_letter_special_tokens_are_no_markup() -> None:
    tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json(("  ", "§"))), 258, ()))
    assert {0, 1}.isdisjoint(tokenizer.encode_markup("a  b§"))
    assert tokenizer.markup_tokens == ()


def test_lone_surrogate_is_the_callers_error(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tiny.encode("a\ud800")


def test_special_id_is_found_by_spelling(tiny: Tokenizer) -> None:
    assert tiny.special_id("<|im_end|>") == 2
    with pytest.raises(KeyError):
        tiny.special_id("<|nothing|>")


def test_special_and_unknown_ids_have_no_bytes(tokenizer: Tokenizer) -> None:
    assert {tokenizer.token_bytes(i) for i in tokenizer.special_tokens.values()} == {b""}
    assert [tokenizer.token_bytes(i) for i in (-1, tokenizer.vocab_size, 1 << 40)] == [b"", b"", b""]
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_bytes_of_all_tokens_cover_all_bytes(tiny: Tokenizer) -> None:
    assert [tiny.token_bytes(17 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tiny.token_text(17 + 0xFF) == "\ufffd"


def test_added_tokens_that_are_not_special_keep_their_text() -> None:
    spec = tokenizer_json(("<tool_call>",))
    spec["added_tokens"][0]["special"] = False
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 257, ()))
    assert tokenizer.token_bytes(0) == b"<tool_call>"
    assert 0 not in tokenizer.encode("<tool_call>")


def test_sentence_pieces_become_bytes() -> None:
    vocab = {"<unk>": 0, "▁hi": 1, "<0x0A>": 2, "é": 3, "▁": 4}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    spec = {**tokenizer_json(()), "model": model, "pre_tokenizer": None, "decoder": None}
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 5, ()))
    assert [tokenizer.token_bytes(i) for i in (1, 2, 3)] == [b" hi", b"\n", "é".encode()]


def test_grammar_library_reads_the_json(tiny: Tokenizer) -> None:
    read = llguidance.LLTokenizer(tiny.to_json(), eos_token=2)
    assert (read.vocab_size, read.tokenize_str("hi")) == (273, tiny.encode("hi"))


def test_bare_checkpoint_has_only_its_own_roles() -> None:
    roles = ByteTokenizer().roles
    assert (roles.turn_open, roles.turn_close, roles.file_sep, roles.repo_name) == (1, 2, 5, 3)
    assert (roles.fim_prefix, roles.tool_open, roles.think_open, roles.mask_id) == (None,) * 4


def test_roles_of_an_adapter_replace_those_of_the_checkpoint(tiny: Tokenizer) -> None:
    other = tiny.with_roles({"think_open": 6})
    assert (other.roles.think_open, tiny.roles.think_open) == (6, 4)
    assert other.encode("x") == tiny.encode("x")


def test_alphabet_of_the_fake_is_that_of_byte_level_tokenizers() -> None:
    assert len(set(byte_characters())) == 256
    assert (byte_characters()[ord(" ")], byte_characters()[ord("\n")]) == ("Ġ", "Ċ")
