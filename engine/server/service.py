"""What stands between HTTP and the engine: the loaded model, who may ask, and how a body becomes engine requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from zellige.engine.api import (
    Answer,
    ImagePart,
    Message,
    ModelIdentity,
    ObservedEngine,
    Part,
    Request,
    RequestRejected,
    TextPart,
    alternatives,
)
from zellige.engine.server.admission import Admission, Ticket
from zellige.engine.server.body import BodyReader
from zellige.engine.server.errors import ApiError, of_validation
from zellige.engine.server.fetch import AllowedHosts, Fetcher
from zellige.engine.server.images import ImageReader, ImageRef
from zellige.engine.server.keys import KeyRing
from zellige.engine.server.limits import Limits
from zellige.engine.server.metrics import Metrics
from zellige.engine.server.replies import Kind
from zellige.engine.server.schemas import ChatBody, CompletionBody, GenerationBody, ImageContent, TextContent

T = TypeVar("T")
Form = TypeVar("Form", bound=GenerationBody)

#: Bodies over so many bytes are parsed in a thread: other streams go on meanwhile.
_LARGE_BODY = 1 << 20
#: What OpenAI's completions (not chats) generate where nothing is said.
_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Loaded:
    """A model that answers."""

    engine: ObservedEngine
    identity: ModelIdentity
    metrics: Metrics
    since: int


@dataclass(frozen=True)
class Asked:
    """One body, understood: the engine requests, as many as choices, that share ``prompts`` prompts evenly."""

    kind: Kind
    requests: tuple[Request, ...]
    prompts: int
    streams: bool
    usage_in_stream: bool


class Service:
    """State of one server. ``open_engine`` is called once, in a thread, while the port is already open."""

    def __init__(
        self, open_engine: Callable[[], ObservedEngine], limits: Limits, hosts: AllowedHosts, keys: KeyRing | None
    ) -> None:
        self._open_engine, self.limits, self._keys = open_engine, limits, keys
        self.admission, self.bodies = Admission(limits), BodyReader(limits)
        self._images = ImageReader(limits, Fetcher(hosts, limits.image_bytes))
        self._loaded: Loaded | None = None
        self._leaving = False
        self.load_error: Exception | None = None

    async def load(self) -> None:
        """Load the model; what goes wrong is kept in ``load_error``."""
        try:
            engine = await _in_daemon(self._open_engine)
            identity = await engine.identity()
        except Exception as error:
            self.load_error = error
            return
        self._loaded = Loaded(engine, identity, Metrics(identity.name, engine.stats), int(time.time()))

    def leave(self) -> None:
        """From now on no request is taken; those in hand go on."""
        self._leaving = True

    async def close(self) -> None:
        """End the engine; what is still being answered fails, and is told so. Harmless when called again."""
        self._leaving = True
        self.bodies.close()
        self._images.close()
        if self._loaded is not None:
            await self._loaded.engine.close()

    @property
    def why_not_ready(self) -> str | None:
        """None when requests are answered."""
        if self.load_error is not None:
            return f"the model could not be loaded: {self.load_error}"
        if self._loaded is None:
            return "the model is being loaded"
        if self._leaving:
            return "the server is shutting down"
        stats = self._loaded.engine.stats()
        return stats.failure or stats.pause

    @property
    def alive(self) -> bool:
        """Whether waiting helps: False when only a restart does."""
        return self.load_error is None and (self._loaded is None or self._loaded.engine.stats().failure is None)

    def model(self) -> Loaded:
        """The model; raises ApiError 503 while there is none."""
        why = self.why_not_ready
        if self._loaded is None or why is not None:
            raise ApiError(503, f"not ready: {why}", code="not_ready", retry_after_s=1)
        return self._loaded

    def answered(self, answer: Answer) -> None:
        """Count an answer, and learn from it how long answers take."""
        if self._loaded is not None:
            self._loaded.metrics.answered(answer)
        self.admission.answered(answer.engine_s)

    def authorize(self, authorization: str | None) -> str:
        """The name of the key that was sent ("" where none is needed); raises ApiError 401."""
        if self._keys is None:
            return ""
        name = self._keys.name_of(authorization)
        if name is None:
            raise ApiError(401, "send a valid API key: Authorization: Bearer KEY", code="invalid_api_key")
        return name

    async def understand(self, kind: Kind, body: bytes, run_id: str, ticket: Ticket) -> Asked:
        """Engine requests of a body, images decoded; raises ApiError or RequestRejected."""
        form: type[ChatBody | CompletionBody] = ChatBody if kind == "chat.completion" else CompletionBody
        parsed = await asyncio.to_thread(_parse, form, body) if len(body) > _LARGE_BODY else _parse(form, body)
        del body
        identity = self.model().identity
        if parsed.model is not None and parsed.model != identity.name:
            raise ApiError(
                404, f"this server serves the model {identity.name!r} only", code="model_not_found", param="model"
            )
        prompts = len(parsed.prompts) if isinstance(parsed, CompletionBody) else 1
        n = 1 if parsed.n is None else parsed.n
        if n > 0 and prompts * n > self.limits.choices:
            raise RequestRejected(f"n: {prompts * n} choices in one request; the limit is {self.limits.choices}")

        def hold(size: int) -> None:
            ticket.hold(max(1, prompts * n), size)

        if isinstance(parsed, ChatBody):
            wanted = identity.max_context if parsed.most_tokens is None else parsed.most_tokens
            sampling, grammar = parsed.sampling(wanted, parsed.wanted_logprobs), parsed.grammar()
            messages = await self._messages(parsed, identity, hold)
            requests = [Request(messages, sampling, run_id, grammar=grammar)]
        else:
            wanted = _COMPLETION_TOKENS if parsed.max_tokens is None else parsed.max_tokens
            sampling, grammar = parsed.sampling(wanted, parsed.logprobs), parsed.grammar()
            hold(0)
            requests = [
                Request((_as_written(text),), sampling, run_id, templated=False, grammar=grammar)
                for text in parsed.prompts
            ]
        return Asked(
            kind=kind,
            requests=tuple(choice for request in requests for choice in alternatives(request, n)),
            prompts=prompts,
            streams=bool(parsed.stream),
            usage_in_stream=parsed.usage_in_stream,
        )

    async def _messages(
        self, body: ChatBody, identity: ModelIdentity, hold: Callable[[int], None]
    ) -> tuple[Message, ...]:
        refs = [
            ImageRef(content.image_url.url, f"messages[{i}].content[{j}]")
            for i, message in enumerate(body.messages)
            for j, content in enumerate(message.content)
            if isinstance(content, ImageContent)
        ]
        images = iter(await self._images.read(refs, identity.vision, hold))

        def part(content: TextContent | ImageContent) -> Part:
            return TextPart(content.text) if isinstance(content, TextContent) else ImagePart(next(images))

        return tuple(
            Message("system" if m.role == "developer" else m.role, tuple(part(c) for c in m.content))
            for m in body.messages
        )


async def _in_daemon(work: Callable[[], T]) -> T:
    """What ``work`` gives, in a thread that nobody waits for at the end: loading may take minutes, leaving may not."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="zellige-load", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _as_written(text: str) -> Message:
    return Message("user", (TextPart(text),))


def _parse(form: type[Form], body: bytes) -> Form:
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from error
