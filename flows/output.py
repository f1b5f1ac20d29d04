"""Lines to stdout and stderr: a reader that goes away (``| head``) ends the writing, and never the run."""

from __future__ import annotations

import os
from typing import TextIO


def put(text: str, stream: TextIO) -> None:
    """Write ``text`` and a line feed at once; what the stream's encoding lacks is written as escapes."""
    try:
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        # What is still buffered would fail once more when the program ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
