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
    """The bytes of every token of a byte-level tokenizer; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        kinds = [decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", ()))]
        if "ByteLevel" not in kinds:
            raise CheckpointError(f"tokenizer.json: decoder {decoder.get('type')} is not supported (only ByteLevel)")
        table = _byte_of_character()
        added = tokenizer.get_added_tokens_decoder()
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bytes: list[bytes] = [b""] * size
        for token, i in tokenizer.get_vocab(with_added_tokens=True).items():
            if i in added:
                self._bytes[i] = b"" if added[i].special else token.encode()
            else:
                self._bytes[i] = bytes(table[c] for c in token)

    def __getitem__(self, token: int) -> bytes:
        # Checkpoints pad their vocabulary past the tokenizer's: such a row means nothing.
        return self._bytes[token] if token < len(self._bytes) else b""


class Detokenizer:
    """Text of one answer as it grows. ``text`` is all of it so far, cut before a stop string."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stop = tuple(stop)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.text = ""
        self.stopped = False
        self._sent = 0

    def push(self, token: int) -> str:
        """What may be shown after this token: whole characters that cannot be part of a stop string any more."""
        self._grow(self._decode(self._vocabulary[token]))
        return self._release(self._held())

    def finish(self) -> str:
        """What was held back; a character that never became whole is shown as U+FFFD."""
        self._grow(self._decode(b"", True))
        return self._release(0)

    def _grow(self, more: str) -> None:
        if self.stopped or not more:
            return
        # A stop string that ends in the new text began at most its length before it.
        begin = max(0, len(self.text) - max(map(len, self._stop), default=0))
        self.text += more
        found = [at for s in self._stop if (at := self.text.find(s, begin)) >= 0]
        if found:
            self.stopped = True
            self.text = self.text[: min(found)]

    def _held(self) -> int:
        """Characters at the end that might be the beginning of a stop string."""
        if self.stopped:
            return 0
        longest = 0
        for s in self._stop:
            for n in range(min(len(s) - 1, len(self.text)), longest, -1):
                if self.text.endswith(s[:n]):
                    longest = n
                    break
        return longest

    def _release(self, held: int) -> str:
        until = max(self._sent, len(self.text) - held)
        piece, self._sent = self.text[self._sent : until], until
        return piece
