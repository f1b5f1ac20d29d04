"""Answers as OpenAI's chat completions spell them, whole or in the chunks of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zellige.engine.api import Answer, FinishReason, RequestRejected, Sampling, TokenLogprob, Usage
from zellige.engine.remote.errors import TryAgainError

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "repetition": "repetition",
    "nonfinite": "nonfinite",
    "cancelled": "cancelled",
    "abort": "cancelled",
    "error": "error",
}
#: The id of a token whose server tells its spelling only.
UNKNOWN_ID = -1


@dataclass
class Reading:
    """One answer as it is read. ``zellige`` holds what our own server adds: token ids, their mean, its seconds."""

    sampling: Sampling
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    zellige: dict[str, Any] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def take(self, value: Any, part: str) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Read one object, whose choice holds its text under ``part``: the text and its tokens' log-probabilities.

        Raises TryAgainError for what is no chat completion.
        """
        try:
            self.usage = value.get("usage") or self.usage
            self.zellige = value.get("zellige") or self.zellige
            choices = value["choices"]
            if not choices:  # the last chunk of a stream, which holds the usage alone
                return "", ()
            choice = choices[0]
            piece = choice[part].get("content") or ""
            if not isinstance(piece, str):
                raise TypeError("the content is no text")
            self.finish = choice.get("finish_reason") or self.finish
            said = tuple(map(_logprob, (choice.get("logprobs") or {}).get("content") or ()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TryAgainError(f"no chat completion came back ({type(error).__name__}: {error})") from error
        self.text += piece
        self.logprobs += said
        return piece, said if self.sampling.logprobs is not None else ()

    def answer(self, seconds: float, first_token_s: float) -> Answer:
        """The whole answer; the seconds are the client's, for a server that tells none.

        Raises RequestRejected for a withheld answer, TryAgainError for one without an end.
        """
        if self.finish == "content_filter":
            raise RequestRejected("the server's content filter withheld the answer")
        if self.finish not in _FINISH:
            raise TryAgainError(f"the server ended an answer with finish_reason {self.finish!r}")
        details = self.usage.get("prompt_tokens_details") or {}
        ids = tuple(self.zellige.get("token_ids") or ())
        return Answer(
            text=self.text,
            finish_reason=_FINISH[self.finish],
            usage=Usage(
                image_tokens=int(details.get("image_tokens") or 0),
                prompt_tokens=int(self.usage.get("prompt_tokens") or 0),
                completion_tokens=int(self.usage.get("completion_tokens") or 0),
            ),
            token_ids=ids,
            mean_logprob=self.zellige.get("mean_logprob", self._mean()),
            engine_s=self.zellige.get("engine_s", seconds),
            first_token_s=self.zellige.get("first_token_s", first_token_s),
            logprobs=self._asked_logprobs(ids),
        )

    def _mean(self) -> float | None:
        return sum(t.logprob for t in self.logprobs) / len(self.logprobs) if self.logprobs else None

    def _asked_logprobs(self, ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        if self.sampling.logprobs is None:
            return ()
        known = ids if len(ids) == len(self.logprobs) else (UNKNOWN_ID,) * len(self.logprobs)
        return tuple(TokenLogprob(i, t.token, t.logprob, t.top) for i, t in zip(known, self.logprobs, strict=True))


def _logprob(said: dict[str, Any]) -> TokenLogprob:
    spelled = said.get("bytes")
    token = str(said.get("token", "")).encode() if spelled is None else bytes(spelled)
    return TokenLogprob(UNKNOWN_ID, token, float(said["logprob"]), tuple(map(_logprob, said.get("top_logprobs") or ())))
