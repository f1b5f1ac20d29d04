"""What went wrong on the wire, sorted by what to do about it: wait, ask another engine, try again, or give up."""

from __future__ import annotations

import json
import re
from collections.abc import Set as AbstractSet
from typing import Any

import httpx

from zellige.engine.api import EngineError, EngineUnavailable, NonFiniteLogits, RequestFatal, RequestRejected
from zellige.engine.remote.config import KEY

#: A server may quote what was sent; no image and no long text of it goes on into a row or a log.
_PAYLOAD = re.compile(r"data:[\w.+/-]*(;[\w.=-]+)*,\S*|[A-Za-z0-9+/=_-]{120,}")
_LONGEST_MESSAGE = 400
#: The status says nothing of the request: the engine is starting, stopping, or gone from behind its proxy.
_GONE = (502, 503)
#: What our own servers say of one request, whose sending again would come to the same.
_OF_MODEL = {"nonfinite_logits": NonFiniteLogits, "request_fatal": RequestFatal}
#: The engine lets us in no more, or has no such model: true of every request, so no row should be blamed for it.
_CLOSED = (401, 403, 404)


class TryAgainError(Exception):
    """The engine could not answer this time; ``counted``: the request may be to blame, so not for ever."""

    counted = True
    starting = False

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineBusyError(TryAgainError):
    """The engine has too much to do (429)."""

    counted = False


class EngineGoneError(TryAgainError):
    """The engine takes no requests: it is out until a probe finds it back. The request was not begun."""

    counted = False


class EngineStartingError(EngineGoneError):
    """Something answers where the engine should, and says that it is not ready: waiting helps."""

    starting = True


class CutOffError(TryAgainError):
    """The connection broke after the request was sent: the engine may have died, perhaps of this request."""


class FieldRefusedError(Exception):
    """The server does not know an optional field, which is left out from now on."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def of_response(
    status: int, body: bytes, retry_after_s: float | None, url: str, optional: AbstractSet[str]
) -> Exception:
    """The error that a status other than 200 stands for; ``optional`` fields of the request may be at fault."""
    error = _error_object(body)
    message = f"{said(error, body)} (status {status} from {url})"
    if status in (400, 422, 500, 501) and (
        refused := [f for f in sorted(optional) if f in body.decode(errors="replace")]
    ):
        return FieldRefusedError(refused[0])
    if (of_model := _OF_MODEL.get(str(error.get("code")))) is not None:
        return of_model(message)
    if status == 429:
        return EngineBusyError(message, retry_after_s)
    if status in _GONE:
        return EngineStartingError(message, retry_after_s)
    if status >= 500:
        return TryAgainError(message, retry_after_s)
    if status in _CLOSED:
        hint = f"; the key is what {KEY} holds" if status == 401 else ""
        return EngineUnavailable(message + hint)
    if status >= 400:
        return RequestRejected(message)
    return EngineUnavailable(f"status {status} from {url} is no answer; is it the address of an OpenAI-compatible API?")


def of_transport(error: httpx.TransportError | httpx.InvalidURL, url: str) -> Exception:
    """A connection that never stood costs the request nothing; one that broke may be the request's own doing."""
    message = f"{url}: {_reason(error)}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return EngineGoneError(message)
    if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol):
        return CutOffError(message)
    return EngineUnavailable(message)


def of_event(error: Any, url: str) -> EngineError | TryAgainError:
    """The error that an event inside a stream tells of."""
    error = error if isinstance(error, dict) else {"message": str(error)}
    message = f"{said(error, b'')} (in the stream from {url})"
    if (of_model := _OF_MODEL.get(str(error.get("code")))) is not None:
        return of_model(message)
    if error.get("type") == "invalid_request_error":
        return RequestRejected(message)
    return TryAgainError(message)


def said(error: dict[str, Any], body: bytes) -> str:
    """What the server says is wrong, short and without what was sent to it."""
    message = error.get("message")
    if not isinstance(message, str) or not message.strip():
        message = body.decode(errors="replace") if not error else "no reason given"
    message = " ".join(_PAYLOAD.sub("…", message).split())
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"


def _error_object(body: bytes) -> dict[str, Any]:
    """The error in the shapes that servers use: OpenAI's, vLLM's former one, FastAPI's ``detail``."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    inner = value.get("error", value)
    if isinstance(inner, str):
        return {"message": inner}
    if not isinstance(inner, dict):
        return {}
    detail = inner.get("detail")
    if isinstance(detail, list):  # pydantic's: where and what; its "input" repeats what was sent
        places = [d for d in detail if isinstance(d, dict)]
        return {"message": "; ".join(f"{'.'.join(map(str, d.get('loc', ())))}: {d.get('msg')}" for d in places)}
    return {"message": detail} if isinstance(detail, str) else inner


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
