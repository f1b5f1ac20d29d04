"""One answer as it comes into being: what decides its next token, its text, its log-probabilities, why it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zellige.engine.api import Answer, Delta, FinishReason, Request, RequestRejected, Sampling, TokenLogprob, Usage
from zellige.engine.detokenizer import Detokenizer, Vocabulary
from zellige.engine.grammar import GrammarCompiler, GrammarState
from zellige.engine.sampler import Chosen, RequestSampler, StepControls, repeats


class Output:
    """The answer to one request, token by token. ``finish_reason`` is None until it ends."""

    def __init__(
        self, request: Request, eos: frozenset[int], vocabulary: Vocabulary, grammar: GrammarState | None = None
    ) -> None:
        self._sampling = request.sampling
        self.grammar = grammar
        self.sampler = RequestSampler(request.sampling, eos)
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, request.sampling.stop)
        self._sum = 0.0
        self._logprobs: list[TokenLogprob] = []
        #: Log-probabilities that went out with a delta.
        self._told = 0

    @property
    def looks_back(self) -> bool:
        """Whether what may come next depends on the tokens before."""
        return self.grammar is not None or self.sampler.looks_back

    def push(self, chosen: Chosen, *, full: bool) -> Delta | None:
        """Take in the next token; ``full``: there is no room for another. What may be shown now, None for nothing.

        Raises RequestRejected where the grammar leads nowhere.
        """
        place = len(self.tokens)
        self.tokens.append(chosen.token)
        self.sampler.count(chosen.token)
        self._sum += chosen.logprob
        if self._sampling.logprobs is not None:
            top = tuple(self._named(t, p) for t, p in chosen.top[: self._sampling.logprobs])
            self._logprobs.append(replace(self._named(chosen.token, chosen.logprob), top=top))
        text = self._judge(chosen.token, full, may_stop=place >= self._sampling.min_tokens)
        if not text and self.finish_reason is None:
            return None
        told, self._told = self._told, len(self._logprobs)
        return Delta(text, logprobs=tuple(self._logprobs[told:]))

    def answer(self, usage: Usage, *, engine_s: float, first_token_s: float) -> Answer:
        """The whole of it, once it has ended."""
        assert self.finish_reason is not None
        return Answer(
            text=self._detokenizer.text,
            finish_reason=self.finish_reason,
            usage=usage,
            token_ids=tuple(self.tokens),
            mean_logprob=self._sum / len(self.tokens),
            engine_s=engine_s,
            first_token_s=first_token_s,
            logprobs=tuple(self._logprobs),
        )

    def _named(self, token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token, self._vocabulary.spelling(token), logprob)

    def _judge(self, token: int, full: bool, may_stop: bool) -> str:
        """The text that may be shown, and the finish reason where this token ends the answer."""
        if self.grammar is not None:
            self.grammar.accept(token)
        text = ""
        if self.sampler.stops_at(token):
            self.finish_reason = "stop"
        else:
            text = self._detokenizer.push(token, may_stop=may_stop)
            if self._detokenizer.stopped or (self.grammar is not None and self.grammar.complete):
                self.finish_reason = "stop"
            elif may_stop and self._sampling.repetition_stop and repeats(self.tokens):
                self.finish_reason = "repetition"
            elif full:
                self.finish_reason = "length"
        return text if self.finish_reason is None else text + self._detokenizer.finish()


def controls_of(outputs: Sequence[Output], grammars: GrammarCompiler, ahead: int = 0) -> StepControls:
    """What decides the next token of each of ``outputs``; their masks are begun here and waited for on the device.

    ``ahead``: tokens before it that are not known yet; only for outputs that do not look back.
    """
    rows = [o.sampler.row(len(o.tokens) + ahead) for o in outputs]
    masked = {i: o.grammar for i, o in enumerate(outputs) if o.grammar is not None}
    return StepControls(rows, list(masked), grammars.masks(list(masked.values())) if masked else None)


def check_token_ids(sampling: Sampling, vocabulary: int) -> None:
    """Raises RequestRejected for a token id past the model's vocabulary; on a GPU it would be a device error."""
    for name, ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", [token for token, _ in sampling.logit_bias]),
    ):
        if (largest := max(ids, default=0)) >= vocabulary:
            raise RequestRejected(f"{name} holds token {largest}; this model's tokens end at {vocabulary - 1}")
