from __future__ import annotations

import random

import pytest
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
