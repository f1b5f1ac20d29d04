"""``zellige serve``: what is told of it, and its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from zellige.engine.api import EngineError
from zellige.flows.output import put

#: Addresses that nobody else reaches.
_LOOPBACK = ("127.", "[::1]", "localhost")


def serve_command(serve: Callable[[Callable[[str], None]], None], *, has_keys: bool) -> int:
    """Run ``serve``, which calls what it is given with its address; 2 when it could not run.

    When it was stopped the process ends here, with exit code 0.
    """

    def tell(url: str) -> None:
        put(f"serving on {url} (chat page, /v1, /metrics; /health says when the model is ready)", sys.stderr)
        if not has_keys and not url.removeprefix("http://").startswith(_LOOPBACK):
            put("zellige: whoever reaches this address may use it; --api-keys FILE asks for a key", sys.stderr)

    try:
        serve(tell)
    except EngineError as error:
        put(f"zellige: {error}", sys.stderr)
        return 2
    # Not by way of the interpreter's own end: on a busy machine its last sweep walks for seconds over what torch holds,
    # and where the model is still being loaded it aborts.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
