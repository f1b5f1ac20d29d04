from __future__ import annotations

import os
import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from zellige.engine.detokenizer import Detokenizer, Vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(characters)}
    vocabulary["th"] = len(vocabulary)
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return t


TEXTS = ["plain thing", "é 汉字 🙂👨‍👩‍👧 ½", "tabs\tand\nlines\r\n", "\x00\x7f", "naïve — “quotes”"]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_none_holds_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(Vocabulary(tokenizer))
    pieces = [detokenizer.push(i) for i in tokenizer.encode(text).ids]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == text == detokenizer.text
    assert all("\ufffd" not in p for p in pieces)


def test_random_tokens_give_what_the_tokenizer_itself_decodes(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    vocabulary = Vocabulary(tokenizer)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 30))]
        detokenizer = Detokenizer(vocabulary)
        pieces = "".join([*map(detokenizer.push, ids), detokenizer.finish()])
        assert pieces == detokenizer.text == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_cut_off_by_the_end_shows_as_a_replacement(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(Vocabulary(tokenizer))
    ids = tokenizer.encode("a🙂").ids[:-1]
    assert "".join(map(detokenizer.push, ids)) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_a_stop_string_across_tokens_is_never_shown(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(Vocabulary(tokenizer), stop=("the end", "\n\n"))
    shown = ""
    for i in tokenizer.encode("this is the then the end of it").ids:
        shown += detokenizer.push(i)
        assert "the end" not in shown
        if detokenizer.stopped:
            break
    shown += detokenizer.finish()
    assert shown == detokenizer.text == "this is the then "


def test_what_only_began_like_a_stop_string_is_shown_in_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(Vocabulary(tokenizer), stop=("END",))
    pieces = [detokenizer.push(i) for i in tokenizer.encode("xEN").ids]
    assert pieces == ["x", "", ""]
    assert detokenizer.finish() == "EN"


def test_a_token_past_the_vocabulary_means_nothing(tokenizer: Tokenizer) -> None:
    assert Vocabulary(tokenizer)[10**6] == b""


def test_special_tokens_are_spelled_where_they_are_shown_and_not_in_an_answer(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    end = tokenizer.token_to_id("<|end|>")
    assert (vocabulary[end], vocabulary.spelling(end)) == (b"", b"<|end|>")
    assert vocabulary.spelling(tokenizer.token_to_id("th")) == vocabulary[tokenizer.token_to_id("th")] == b"th"


def ended(text: str, stops: list[str], free: int = 0) -> tuple[str, bool]:
    """By trying every end: the text before the stop string complete first, past the first ``free`` characters."""
    for end in range(free + 1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


#: Few letters, so that strings overlap themselves and each other; of 1, 2 and 4 bytes.
LETTERS = st.text("abé🙂", max_size=30)
STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=6), max_size=4)


@settings(max_examples=3000 if os.environ.get("ZELLIGE_TEST_LONG") else 300, deadline=None)
@given(LETTERS, STOPS, st.data())
def test_a_stop_string_ends_the_text_however_it_is_split_into_tokens(text: str, stops: list[str], data) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=len(whole))))
    pieces = [whole[a:b] for a, b in pairwise([0, *[c for c in cuts if c < len(whole)], len(whole)])]
    free = data.draw(st.integers(0, len(pieces)))
    detokenizer = Detokenizer(pieces, stops)  # a list of bytes serves as a vocabulary
    shown = ""
    for token in range(len(pieces)):
        shown += detokenizer.push(token, may_stop=token >= free)
        if detokenizer.stopped:
            break
        assert not any(s in shown for s in stops) or free
    shown += detokenizer.finish()
    in_free = len(b"".join(pieces[:free]).decode(errors="ignore"))
    want, stopped = ended(text, stops, in_free)
    assert (shown, detokenizer.text, detokenizer.stopped) == (want, want, stopped)
    assert "\ufffd" not in shown


@given(LETTERS, STOPS)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(text: str, stops: list[str]) -> None:
    letters = [c.encode() for c in text]
    detokenizer = Detokenizer(letters, stops)
    shown = ""
    for i in range(len(letters)):
        shown += detokenizer.push(i)
        if detokenizer.stopped:
            return
        held = text[len(shown) : i + 1]
        assert not held or any(s.startswith(held) for s in stops)


def test_long_stop_strings_that_almost_match_cost_little() -> None:
    """64 strings of 1,000 equal characters against as many answers' worth of the same character."""
    letters = [b"a"]
    detokenizer = Detokenizer(letters, ["a" * (900 + i) + "b" for i in range(64)])
    begin = time.process_time()
    for _ in range(2000):
        detokenizer.push(0)
    assert time.process_time() - begin < 5
