from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.text.channels import Channel, ChannelDelta, Channels
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import ByteTokenizer, tiny_tokenizer, tokenizer_json

_TINY = tiny_tokenizer()
_BARE = ByteTokenizer()
_TOOLS = ("get",)
_CALL = '{"name": "get", "arguments": {"city": "Bonn"}}'
Part = tuple[Channel, int, str, str]
THINK, UNTHINK, CALL, UNCALL = 4, 7, 8, 10
_PIECES = st.sampled_from(
    [
        THINK,
        UNTHINK,
        CALL,
        UNCALL,
        _CALL,
        "hi",
        "\n",
        "\n\n",
        " ",
        "<",
        "<think>",
        "</tool_call>",
        '{"name": "get"',
        "é😀",
    ]
)


def ids_of(pieces: Sequence[int | str]) -> list[int]:
    return [i for piece in pieces for i in ([piece] if isinstance(piece, int) else _TINY.encode(piece))]


def merged(deltas: Sequence[ChannelDelta]) -> list[Part]:
    """Deltas with neighbours of the same channel joined."""
    out: list[Part] = []
    for delta in deltas:
        if out and out[-1][:2] == (delta.channel, delta.index) and not delta.name:
            out[-1] = (*out[-1][:3], out[-1][3] + delta.text)
        else:
            out.append((delta.channel, delta.index, delta.name, delta.text))
    return out


def split(pieces: Sequence[int | str], *, stop: Sequence[str] = (), opens_thinking: bool = False) -> list[Part]:
    channels = Channels(_TINY, stop=stop, tool_names=_TOOLS, opens_thinking=opens_thinking)
    return merged([*channels.push(ids_of(pieces)), *channels.finish()])


def split_text(text: str, *, tools: Sequence[str] = _TOOLS) -> list[Part]:
    channels = Channels(_BARE, tool_names=tools)
    return merged([*channels.push(_BARE.encode(text)), *channels.finish()])


def test_plain_answer_is_content() -> None:
    assert split(["  hello\n"]) == [(Channel.CONTENT, 0, "", "  hello\n")]


def test_thoughts_call_and_answer_go_their_ways() -> None:
    pieces = [THINK, "\nhm\n", UNTHINK, "\n\nlook:", CALL, _CALL, UNCALL, "\n", CALL, '{"name": "get"}', UNCALL, "\n"]
    assert split(pieces) == [
        (Channel.REASONING, 0, "", "hm\n"),
        (Channel.CONTENT, 0, "", "look:"),
        (Channel.TOOL_CALL, 0, "get", '{"city": "Bonn"}'),
        (Channel.TOOL_CALL, 1, "get", "{}"),
    ]


def test_prompt_that_opened_thinking_begins_in_it() -> None:
    assert split(["hm", UNTHINK, "yes"], opens_thinking=True) == [
        (Channel.REASONING, 0, "", "hm"),
        (Channel.CONTENT, 0, "", "yes"),
    ]


def test_call_in_the_midst_of_thinking_ends_it() -> None:
    found = [part[0] for part in split(["hm", CALL, _CALL, UNCALL, "so"], opens_thinking=True)]
    assert found == [Channel.REASONING, Channel.TOOL_CALL, Channel.CONTENT]


def test_arguments_stream_as_they_come() -> None:
    channels = Channels(_TINY, tool_names=_TOOLS)
    first = channels.push([CALL, *_TINY.encode(_CALL[:40])])
    assert first == [ChannelDelta(Channel.TOOL_CALL, _CALL[29:40], 0, "get")]
    assert channels.push(_TINY.encode(_CALL[40:42])) == [ChannelDelta(Channel.TOOL_CALL, _CALL[40:42])]
    assert channels.channel is Channel.TOOL_CALL
    channels.push(_TINY.encode(_CALL[42:]))
    assert channels.finish() == []
    assert channels.num_calls == 1


@pytest.mark.parametrize("body", ["not json", '{"name": "other", "arguments": {}}', '{"name": "get", "arg', " "])
def test_call_that_is_none_becomes_content(body: str) -> None:
    assert split(["a", CALL, body, UNCALL, "b"]) == [(Channel.CONTENT, 0, "", f"a{body}b")]
    assert split_text(f"a<tool_call>{body}</tool_call>b") == [
        (Channel.CONTENT, 0, "", f"a<tool_call>{body}</tool_call>b")
    ]
    assert split_text(f"a<tool_call>{body}") == [(Channel.CONTENT, 0, "", f"a<tool_call>{body}")]


def test_text_tags_serve_where_there_are_no_tokens() -> None:
    text = f"<think>a < b</think>\n\nSo:\n<tool_call>\n{_CALL}\n</tool_call>\n<tool_call>{_CALL}</tool_call>"
    assert split_text(text) == [
        (Channel.REASONING, 0, "", "a < b"),
        (Channel.CONTENT, 0, "", "So:\n"),
        (Channel.TOOL_CALL, 0, "get", '{"city": "Bonn"}'),
        (Channel.TOOL_CALL, 1, "get", '{"city": "Bonn"}'),
    ]


def test_closing_tag_within_an_argument_is_text() -> None:
    arguments = json.dumps({"a": "</tool_call>"})
    found = split_text(f'<tool_call>{{"name": "get", "arguments": {arguments}}}</tool_call>done')
    assert found == [(Channel.TOOL_CALL, 0, "get", arguments), (Channel.CONTENT, 0, "", "done")]


def test_stray_tags_change_nothing() -> None:
    assert split_text("a</think>b</tool_call>c") == [(Channel.CONTENT, 0, "", "a</think>b</tool_call>c")]
    assert split(["a", UNTHINK, "b", UNCALL, "c"]) == [(Channel.CONTENT, 0, "", "abc")]
    assert split(["a", THINK, "b"], opens_thinking=True) == [(Channel.REASONING, 0, "", "ab")]


def test_without_tools_there_are_no_calls() -> None:
    assert split_text(f"<tool_call>{_CALL}</tool_call>", tools=()) == [
        (Channel.CONTENT, 0, "", f"<tool_call>{_CALL}</tool_call>")
    ]
    channels = Channels(_TINY)
    assert channels.push([CALL, *_TINY.encode(_CALL), UNCALL]) == [ChannelDelta(Channel.CONTENT, _CALL)]


def test_tag_tokens_that_have_text_keep_it_where_they_mean_nothing() -> None:
    spec = tokenizer_json(("<tool_call>", "</tool_call>"))
    for token in spec["added_tokens"]:
        token["special"] = False
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 258, ()))
    assert Channels(tokenizer).push([0, *tokenizer.encode("x"), 1])[0].text == "<tool_call>x</tool_call>"
    offered = Channels(tokenizer, tool_names=_TOOLS)
    assert offered.push([0, *tokenizer.encode(_CALL), 1]) == [
        ChannelDelta(Channel.TOOL_CALL, '{"city": "Bonn"}', 0, "get")
    ]


def test_stop_strings_count_in_content_alone() -> None:
    pieces = [THINK, "a END b", UNTHINK, "c EN", "D d"]
    assert split(pieces, stop=["END"]) == [(Channel.REASONING, 0, "", "a END b"), (Channel.CONTENT, 0, "", "c ")]
    channels = Channels(_TINY, stop=["END"])
    channels.push(_TINY.encode("x END y"))
    assert channels.stopped == "END"
    assert channels.push(_TINY.encode("z")) == channels.finish() == []


def test_stop_string_of_blanks_is_found_though_tools_are_offered() -> None:
    assert split(["\n\n\nhi"], stop=["\n\n"]) == []
    assert split(["\n\n\n"], stop=["\n\n"]) == []


def test_blank_answer_is_kept_when_nothing_was_called() -> None:
    assert split([" \n"]) == [(Channel.CONTENT, 0, "", " \n")]
    assert split([CALL, _CALL, UNCALL, " \n"]) == [(Channel.TOOL_CALL, 0, "get", '{"city": "Bonn"}')]


def test_each_token_has_its_channel() -> None:
    channels = Channels(_TINY, tool_names=_TOOLS)
    channels.push(ids_of([THINK, "a", UNTHINK, "b", CALL, "{", UNCALL]))
    assert "".join(channel[0] for channel in channels.token_channels) == "rrrcttt"


def test_code_point_broken_by_a_tag_is_replaced() -> None:
    assert split([THINK, _TINY.encode("é")[0], UNTHINK, _TINY.encode("é")[1]]) == [
        (Channel.REASONING, 0, "", "\ufffd"),
        (Channel.CONTENT, 0, "", "\ufffd"),
    ]


@given(st.lists(_PIECES, max_size=9), st.lists(st.integers(0, 9), max_size=12), st.booleans())
def test_any_cut_of_the_tokens_gives_the_same_channels(
    pieces: list[int | str], sizes: list[int], opens_thinking: bool
) -> None:
    ids = ids_of(pieces)
    channels = Channels(_TINY, stop=["word\n"], tool_names=_TOOLS, opens_thinking=opens_thinking)
    deltas = []
    for size in sizes:
        deltas += channels.push(ids[:size])
        ids = ids[size:]
    deltas += [*channels.push(ids), *channels.finish()]
    assert merged(deltas) == split(pieces, stop=["word\n"], opens_thinking=opens_thinking)


@given(st.lists(_PIECES, max_size=9), st.data())
def test_any_cut_of_the_text_gives_the_same_channels_and_loses_nothing(
    pieces: list[int | str], data: st.DataObject
) -> None:
    tags = {THINK: "<think>", UNTHINK: "</think>", CALL: "<tool_call>", UNCALL: "</tool_call>"}
    text = "".join(tags[piece] if isinstance(piece, int) else piece for piece in pieces)
    channels = Channels(_BARE, tool_names=_TOOLS)
    rest, deltas = text, []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas += channels.push(_BARE.encode(rest[:size]))
        rest = rest[size:]
    deltas += channels.finish()
    assert merged(deltas) == split_text(text)
    said = "".join(name + piece for _, _, name, piece in merged(deltas))
    for word in ("word", "é😀", "Bonn"):
        assert said.count(word) == text.count(word)


_GEMMA = Tokenizer(
    Vocabulary(
        json.dumps(tokenizer_json(("<pad>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|think|>"))),
        262,
        (0,),
    )
)


def split_gemma(pieces: Sequence[int | str], *, size: int = 99, opens_thinking: bool = False) -> list[Part]:
    """The answer in cuts of `size` tokens."""
    ids = [i for piece in pieces for i in ([piece] if isinstance(piece, int) else _GEMMA.encode(piece))]
    channels = Channels(_GEMMA, tool_names=_TOOLS, opens_thinking=opens_thinking)
    deltas = [delta for at in range(0, len(ids), size) for delta in channels.push(ids[at : at + size])]
    return merged([*deltas, *channels.finish()])


@pytest.mark.parametrize("size", [1, 3, 99])
def test_the_name_of_gemmas_thinking_channel_is_not_part_of_the_reasoning(size: int) -> None:
    found = split_gemma([1, "thought\nhm, so", 2, "Hi", 3, _CALL, 4], size=size)
    assert found == [
        (Channel.REASONING, 0, "", "hm, so"),
        (Channel.CONTENT, 0, "", "Hi"),
        (Channel.TOOL_CALL, 0, "get", '{"city": "Bonn"}'),
    ]
    assert split_gemma([1, "thought\n", 2, "Hi"], size=size) == [(Channel.CONTENT, 0, "", "Hi")]
    assert split_gemma([1, "thought", 2, "Hi"], size=size) == [(Channel.CONTENT, 0, "", "Hi")]


@pytest.mark.parametrize("size", [1, 99])
def test_another_first_line_of_gemmas_thinking_channel_stays(size: int) -> None:
    assert split_gemma([1, "tho", 2, "Hi"], size=size)[0] == (Channel.REASONING, 0, "", "tho")
    assert split_gemma([1, "though\nx", 2], size=size)[0] == (Channel.REASONING, 0, "", "though\nx")
    assert split_gemma([1, "tho"], size=size) == [(Channel.REASONING, 0, "", "tho")]
    opened = split_gemma(["thought\nx", 2, "y"], size=size, opens_thinking=True)
    assert opened[0] == (Channel.REASONING, 0, "", "thought\nx")
