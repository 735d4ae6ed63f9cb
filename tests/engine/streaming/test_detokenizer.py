"""The detokenizer: whole characters, stop strings never leaked, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftline.engine.streaming.detokenizer import Detokenizer


def run(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    """Push all pieces; the texts as they came (the flush last), and the stop string that ended it."""
    detokenizer, texts = Detokenizer(stops), []
    for piece in pieces:
        text, stop = detokenizer.push(piece)
        texts.append(text)
        if stop is not None:
            return texts, stop
    return [*texts, detokenizer.flush()], None


def test_a_character_appears_with_its_last_byte() -> None:
    euro = "€".encode()
    assert run([b"a", euro[:1], euro[1:2], euro[2:], b"b"]) == (["a", "", "", "€", "b", ""], None)


def test_an_unfinished_character_becomes_the_replacement_character() -> None:
    assert run([b"a", "€".encode()[:2]]) == (["a", "", "\ufffd"], None)


def test_a_possible_stop_is_held_and_released_when_it_is_none() -> None:
    assert run([b"x", b"EN", b"C", b"y"], ("END",)) == (["x", "", "ENC", "y", ""], None)


def test_a_stop_across_tokens_is_cut_out() -> None:
    assert run([b"one ", b"EN", b"D two"], ("END",)) == (["one ", "", ""], "END")


def test_the_earliest_stop_wins_and_the_longer_at_the_same_index() -> None:
    assert run([b"a-b--c"], ("--", "-b", "-b-")) == (["a"], "-b-")


def test_a_held_prefix_at_the_end_is_flushed() -> None:
    assert run([b"abcE"], ("END",)) == (["abc", "E"], None)


def test_unchecked_text_does_not_stop() -> None:
    detokenizer = Detokenizer(("END",))
    assert detokenizer.push_unchecked(b"END") == "END"
    assert detokenizer.push(b"END") == ("", "END")


@given(
    st.text(alphabet="ab-é€😀", max_size=40),
    st.lists(st.text(alphabet="ab-é", min_size=1, max_size=4), max_size=4),
    st.data(),
)
def test_any_split_gives_the_text_before_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    pieces = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    texts, stop = run(pieces, tuple(stops))
    shown = "".join(texts)
    if stop is None:
        assert shown == text
        assert not any(s in text for s in stops)
    else:
        assert text.startswith(shown + stop)
        assert not any(s in shown for s in stops)


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\x28", b"\xe2\x82"])
def test_invalid_bytes_decode_as_python_replaces_them(bad: bytes) -> None:
    texts, _ = run([bad[i : i + 1] for i in range(len(bad))])
    assert "".join(texts) == bad.decode("utf-8", "replace")
