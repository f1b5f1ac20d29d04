"""What one server takes at most; what is over is refused before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one request (413, 408) and of all that are being answered together (429).

    ``bytes_in_hand`` counts the bodies that are being read and the pixels that wait for their answers.
    """

    body_bytes: int = 64 * MIB
    image_bytes: int = 32 * MIB
    image_pixels: int = 64_000_000
    images: int = 32
    choices: int = 128
    body_s: float = 60.0
    requests: int = 1024
    bytes_in_hand: int = 1024 * MIB
    decoders: int = 4


#: SIGTERM to exit takes at most 20 s: answers may end for so long, then they fail, and their senders are told. The rest
#: is for clients that read slowly, and for the interpreter to end on a busy machine.
ANSWERS_END_S = 12.0
CONNECTIONS_END_S = 14.0
