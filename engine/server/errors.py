"""Errors as OpenAI's clients know them. Messages say what is wrong and repeat no text and no image that was sent."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from zellige.engine.api import EngineError, NonFiniteLogits, RequestFatal, RequestRejected
from zellige.engine.server.schemas import FIELDS, OUTER_FIELDS

#: In place of a message of pydantic's that quotes what was sent.
_QUOTED = {"union_tag_invalid": "give a type of content that is known: text or image_url"}
#: A regex or a schema is quoted around its mistake, however long it is.
_LONGEST_MESSAGE = 400


class ApiError(Exception):
    """An answer that is an error: its HTTP status, OpenAI's fields, and when to come back."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int = 0
    ) -> None:
        message = message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def too_large(message: str, param: str | None = None) -> ApiError:
    return ApiError(413, message, code="request_too_large", param=param)


def of_engine(error: EngineError, *, gone: bool = False) -> ApiError:
    """What the engine said: the request's own fault is 400, the engine's 500, or 503 where it answers nobody."""
    if isinstance(error, RequestRejected):
        return ApiError(400, str(error), code="request_rejected", param=_begins_with(str(error)))
    if isinstance(error, NonFiniteLogits):
        return ApiError(500, str(error), code="nonfinite_logits")
    if isinstance(error, RequestFatal):  # also while the engine starts again: whoever waited for it would end it again
        return ApiError(500, str(error), code="request_fatal")
    return ApiError(503 if gone else 500, str(error), code="engine_error", retry_after_s=1)


def of_validation(error: ValidationError) -> ApiError:
    """The first thing that a body has wrong: where, by our own names, and what is expected; its value is left out."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ""
    previous: int | str | None = None
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part in FIELDS and part != previous:  # a union's tag stands before the field of the same name
            where += f".{part}" if where else part
        previous = part
    message = _QUOTED.get(first["type"], first["msg"].removeprefix("Value error, "))
    param = where or _begins_with(message)
    return ApiError(400, f"{where}: {message}" if where else message, code="invalid_body", param=param)


def _begins_with(message: str) -> str | None:
    """The field that a message begins with, as all do that are about one."""
    found = re.match(r"(?:a token id in )?(\w+)", message)
    return found[1] if found is not None and found[1] in OUTER_FIELDS else None
