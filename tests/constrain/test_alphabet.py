"""The vocabulary of single bytes."""

from __future__ import annotations

from quicksilver.constrain.alphabet import make_alphabet, plain_alphabet


def test_special_ids_and_bytes_do_not_overlap() -> None:
    alphabet = plain_alphabet([3, 7])
    assert alphabet.special_ids[:2] == (3, 7)
    assert set(alphabet.special_ids).isdisjoint(alphabet.byte_ids.values())
    assert plain_alphabet([3, 7]) is alphabet


def test_a_byte_that_the_vocabulary_lacks_cannot_be_spelled() -> None:
    alphabet = make_alphabet({ord("a"): 0, ord("}"): 1}, [2], 2, 3)
    assert alphabet.spell(b"a}") == [0, 1]
    assert alphabet.spell(b"ab") is None
    assert alphabet.letter_id == -1
    assert alphabet.closing_ids == {1}


def test_ids_are_ordered_by_what_they_end() -> None:
    alphabet = plain_alphabet([])
    num_special = len(alphabet.special_ids)
    assert alphabet.from_text[num_special] == alphabet.byte_ids[ord('"')]
    assert alphabet.from_values[num_special] == alphabet.byte_ids[ord("}")]
    assert set(alphabet.from_text) == set(alphabet.from_values)
