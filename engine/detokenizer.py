"""From token ids to text that never holds half a character, with stop strings that may straddle tokens."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from zellige.engine.checkpoint import CheckpointError


def _byte_of_character() -> dict[str, int]:
    """The byte that each printable character of a byte-level vocabulary stands for (the GPT-2 table).

    Printable Latin-1 stands for itself; the other bytes, in order, stand behind code point 256.
    """
    itself = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    table = {chr(b): b for b in itself}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in itself)})
    return table


class Vocabulary:
    """The bytes of every token of a byte-level tokenizer; in the text of an answer special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        kinds = [decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", ()))]
        if "ByteLevel" not in kinds:
            raise CheckpointError(f"tokenizer.json: decoder {decoder.get('type')} is not supported (only ByteLevel)")
        table = _byte_of_character()
        added = tokenizer.get_added_tokens_decoder()
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bytes: list[bytes] = [b""] * size
        #: Special tokens and how they are written.
        self.special: dict[int, bytes] = {}
        for token, i in tokenizer.get_vocab(with_added_tokens=True).items():
            if i not in added:
                self._bytes[i] = bytes(table[c] for c in token)
            elif added[i].special:
                self.special[i] = token.encode()
            else:
                self._bytes[i] = token.encode()

    def __getitem__(self, token: int) -> bytes:
        # Checkpoints pad their vocabulary past the tokenizer's: such a row means nothing.
        return self._bytes[token] if token < len(self._bytes) else b""

    def __len__(self) -> int:
        return len(self._bytes)

    def spelling(self, token: int) -> bytes:
        """The bytes of a token, of a special one how it is written: to show it, not to be part of an answer."""
        return self.special.get(token) or self[token]


class _StopString:
    """How much of one stop string stands at the end of a text that grows by characters (Knuth, Morris, Pratt)."""

    def __init__(self, text: str) -> None:
        self._text, self.matched = text, 0
        # _shorter[n]: the longest beginning of the string that also ends its first n characters, itself left out.
        self._shorter = [0, 0]
        for character in text[1:]:
            self._shorter.append(self._extended(self._shorter[-1], character))

    def _extended(self, matched: int, character: str) -> int:
        while matched and self._text[matched] != character:
            matched = self._shorter[matched]
        return matched + (self._text[matched] == character)

    def push(self, character: str) -> int:
        """The length of the string where this character completes it, else 0."""
        self.matched = self._extended(self.matched, character)
        if self.matched < len(self._text):
            return 0
        self.matched = self._shorter[self.matched]
        return len(self._text)


class Detokenizer:
    """Text of one answer as it grows: ``text`` is all of it so far, cut before the stop string complete first."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stop = [_StopString(s) for s in stop]
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._shown: list[str] = []
        self._held = ""
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join((*self._shown, self._held))

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """What may be shown after this token: whole characters that cannot be part of a stop string any more.

        Where it may not stop, a stop string that this token completes is text like any other.
        """
        self._grow(self._decode(self._vocabulary[token]), may_stop)
        return self._release(0 if self.stopped else max((s.matched for s in self._stop), default=0))

    def finish(self) -> str:
        """What was held back; a character that never became whole is shown as U+FFFD."""
        self._grow(self._decode(b"", True), may_stop=False)
        return self._release(0)

    def _grow(self, more: str, may_stop: bool) -> None:
        if self.stopped:
            return
        if not self._stop:
            self._held += more
            return
        for character in more:
            self._held += character
            # Every string sees every character; of those complete at once the longest began first.
            length = max(s.push(character) for s in self._stop)
            if length and may_stop:
                self._held = self._held[:-length]
                self.stopped = True
                return

    def _release(self, kept: int) -> str:
        """Show what is held except for the last ``kept`` characters."""
        until = len(self._held) - kept
        piece, self._held = self._held[:until], self._held[until:]
        self._shown.append(piece)
        return piece
