"""Answers as OpenAI's API words them: whole bodies and the pieces of a stream.

Beyond OpenAI's fields ``zellige`` says more of each answer (beside the choices where there is one, else in each of
them), and the usage counts image tokens. A finish reason is the engine's own: ``repetition`` is one of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from zellige.engine.api import Answer, Delta, ModelIdentity, RunMeter, TokenLogprob, Usage

#: OpenAI's stand-in for minus infinity, which JSON has no word for.
_LEAST_LOGPROB = -9999.0

Kind = Literal["chat.completion", "text_completion"]


@dataclass(frozen=True)
class Reply:
    """One reply of one model: what all its pieces have in common."""

    kind: Kind
    model: str
    id: str = field(default_factory=lambda: f"zellige-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
        """The reply without streaming; ``prompts`` are those that the answers share evenly."""
        choices = [self._choice(i, a) for i, a in enumerate(answers)]
        body = {**self._head(self.kind), "choices": choices, "usage": usage(answers, prompts)}
        if len(answers) == 1:
            return body | {"zellige": _more(answers[0])}
        for choice, answer in zip(choices, answers, strict=True):
            choice["zellige"] = _more(answer)
        return body

    def begin(self, index: int) -> bytes:
        """The event that opens a choice of a chat: whose turn it is. Nothing for a completion."""
        if self.kind == "text_completion":
            return b""
        return self._event(index, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, index: int, delta: Delta) -> bytes:
        """The event of the next text and the log-probabilities of its tokens."""
        body = {"text": delta.text} if self.kind == "text_completion" else {"delta": {"content": delta.text}}
        return self._event(index, body | {"logprobs": self._logprobs(delta.logprobs)})

    def end(self, index: int, answer: Answer) -> bytes:
        """The event that closes a choice: why it ended."""
        body: dict[str, Any] = {"text": ""} if self.kind == "text_completion" else {"delta": {}}
        return self._event(index, body | {"finish_reason": answer.finish_reason}, {"zellige": _more(answer)})

    def usage(self, answers: Sequence[Answer], prompts: int) -> bytes:
        return event({**self._chunk_head, "choices": [], "usage": usage(answers, prompts)})

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        completion = self.kind == "text_completion"
        said = {"text": answer.text} if completion else {"message": {"role": "assistant", "content": answer.text}}
        return {
            "index": index,
            **said,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish_reason,
        }

    def _event(self, index: int, body: dict[str, Any], more: dict[str, Any] | None = None) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **body}
        return event({**self._chunk_head, "choices": [choice], **(more or {})})

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not logprobs:
            return None
        if self.kind == "text_completion":
            return {
                "tokens": [_spelled(t) for t in logprobs],
                "token_logprobs": [max(t.logprob, _LEAST_LOGPROB) for t in logprobs],
                "top_logprobs": [{_spelled(top): max(top.logprob, _LEAST_LOGPROB) for top in t.top} for t in logprobs],
            }
        return {"content": [_logprob(t) | {"top_logprobs": [_logprob(top) for top in t.top]} for t in logprobs]}

    @property
    def _chunk_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.kind == "chat.completion" else self.kind)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage(answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
    """Tokens of a reply: each prompt once, however many answers it got."""
    total = Usage(
        image_tokens=sum(a.usage.image_tokens for a in answers) * prompts // len(answers),
        prompt_tokens=sum(a.usage.prompt_tokens for a in answers) * prompts // len(answers),
        completion_tokens=sum(a.usage.completion_tokens for a in answers),
    )
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {"image_tokens": total.image_tokens},
    }


def models(identity: ModelIdentity, created: int) -> dict[str, Any]:
    """The list of one model; ``zellige`` is what a client needs to plan tiles and to name the model in a recipe."""
    about = {
        "fingerprint": identity.fingerprint,
        "dtype": identity.dtype,
        "vision": dataclasses.asdict(identity.vision),
        "follows_instructions": identity.follows_instructions,
        "lines_at_once": identity.lines_at_once,
    }
    model = {
        "id": identity.name,
        "object": "model",
        "created": created,
        "owned_by": "zellige",
        "max_model_len": identity.max_context,
        "zellige": about,
    }
    return {"object": "list", "data": [model]}


def meter(run: RunMeter) -> dict[str, Any]:
    """A run's meter with its kernels' health; a number that is none (the error of a NaN) is null."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: told(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [told(inner) for inner in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    body: dict[str, Any] = told(dataclasses.asdict(run))
    return body


def _more(answer: Answer) -> dict[str, Any]:
    return {
        "token_ids": answer.token_ids,
        "mean_logprob": None if answer.mean_logprob is None else max(answer.mean_logprob, _LEAST_LOGPROB),
        "engine_s": answer.engine_s,
        "first_token_s": answer.first_token_s,
    }


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    return {"token": _spelled(token), "logprob": max(token.logprob, _LEAST_LOGPROB), "bytes": list(token.token)}


def _spelled(token: TokenLogprob) -> str:
    return token.token.decode(errors="replace")
