"""The routes. Each error is in OpenAI's shape; a request that is refused early has not been read into memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from zellige.engine.api import EngineError
from zellige.engine.server.answers import answers_of, events_of
from zellige.engine.server.body import discard
from zellige.engine.server.chat_page import PAGE, POLICY
from zellige.engine.server.disconnect import ClientGone, EventStream, unless_gone
from zellige.engine.server.errors import ApiError, of_engine
from zellige.engine.server.replies import Kind, Reply, meter, models
from zellige.engine.server.service import Service

_RUN_ID = re.compile(r"[\w.:-]{0,128}", re.ASCII)
#: What a client that closed its connection never sees.
_CLIENT_CLOSED = 499


def create_app(service: Service, on_load_error: Callable[[], None] = lambda: None) -> FastAPI:
    """The application over a service; ``on_load_error`` is called when there will never be a model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def load() -> None:
            await service.load()
            if service.load_error is not None:
                on_load_error()

        loading = asyncio.create_task(load())
        yield
        loading.cancel()
        await service.close()

    app = FastAPI(title="Zellige", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_error_handlers(app, service)

    @app.get("/", include_in_schema=False)
    async def chat_page() -> Response:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @app.get("/health")
    async def health() -> Response:
        why = service.why_not_ready
        body = {"live": service.alive, "ready": why is None, "reason": why}
        return JSONResponse(body, 200 if why is None else 503)

    @app.get("/metrics")
    async def metrics(http: Request) -> Response:
        service.authorize(http.headers.get("authorization"))
        return Response(service.model().metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def list_models(http: Request) -> Response:
        service.authorize(http.headers.get("authorization"))
        model = service.model()
        return JSONResponse(models(model.identity, model.since))

    @app.get("/v1/runs/{run_id}/meter")
    async def run_meter(http: Request, run_id: str) -> Response:
        service.authorize(http.headers.get("authorization"))
        return JSONResponse(meter(await service.model().engine.meter(run_id)))

    @app.post("/v1/chat/completions")
    async def chat_completions(http: Request) -> Response:
        return await _generate(service, http, "chat.completion")

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        return await _generate(service, http, "text_completion")

    return app


async def _generate(service: Service, http: Request, kind: Kind) -> Response:
    with ExitStack() as stack:
        try:
            key = service.authorize(http.headers.get("authorization"))
            model = service.model()
            run_id = _run_id(http)
            ticket = service.admission.enter(_declared_bytes(http, service.limits.body_bytes))
            stack.callback(ticket.leave)
        except ApiError:
            await discard(http)
            raise
        if key:
            model.metrics.asked_by(key)
        body = await service.bodies.read(http)
        try:
            asked = await unless_gone(http, service.understand(kind, body, run_id, ticket))
            del body
            model.metrics.asked(asked.requests)
            reply = Reply(kind, model.identity.name)
            if not asked.streams:
                answers = await unless_gone(http, answers_of(model.engine, asked.requests))
                for answer in answers:
                    service.answered(answer)
                model.metrics.prompts_answered(answers, asked.prompts)
                return JSONResponse(reply.whole(answers, asked.prompts))
        except ClientGone:
            model.metrics.cancelled()
            return Response(status_code=_CLIENT_CLOSED)
        events = events_of(
            model.engine,
            asked.requests,
            reply,
            model.metrics,
            service.answered,
            asked.prompts,
            tells_usage=asked.usage_in_stream,
        )
        try:
            # Waited for here: what goes wrong before the first token has a status of its own.
            first = await unless_gone(http, anext(events))
        except ClientGone:
            return Response(status_code=_CLIENT_CLOSED)
        return EventStream(first, events, stack.pop_all().close)
    raise AssertionError("unreachable")


def _declared_bytes(http: Request, limit: int) -> int:
    """How long the body says it is (the limit where it does not say); raises ApiError 413 or 415."""
    # A page of another site can send forms and plain text here without asking the browser; JSON it cannot.
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "send application/json", code="unsupported_media_type")
    declared = http.headers.get("content-length")
    if declared is None:
        return limit
    if not declared.isdecimal() or int(declared) > limit:
        raise ApiError(413, f"the body is over the limit of {limit >> 20} MiB", code="request_too_large")
    return int(declared)


def _run_id(http: Request) -> str:
    run_id = http.headers.get("x-zellige-run", "")
    if not _RUN_ID.fullmatch(run_id):
        raise ApiError(400, "X-Zellige-Run: give at most 128 letters, digits, and _ . : -", code="invalid_run_id")
    return run_id


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    def respond(error: ApiError) -> Response:
        if service.why_not_ready is None:
            service.model().metrics.failed(error.status)
        return JSONResponse(error.body, error.status, error.headers)

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(EngineError)
    async def engine_error(_: Request, error: EngineError) -> Response:
        return respond(of_engine(error, gone=service.why_not_ready is not None))

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, error: ClientDisconnect) -> Response:
        if service.why_not_ready is None:
            service.model().metrics.cancelled()
        return Response(status_code=_CLIENT_CLOSED)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return respond(ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        # The server's log gets the traceback; the client gets nothing that could hold another's data.
        if (why := service.why_not_ready) is not None:
            return respond(ApiError(503, f"not ready: {why}", code="not_ready", retry_after_s=1))
        return respond(ApiError(500, "the server failed on this request; its log says more", code="internal_error"))
