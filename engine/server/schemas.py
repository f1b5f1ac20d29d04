"""What ``/v1/chat/completions`` and ``/v1/completions`` take, and what the engine is asked for it.

Fields that would change an answer and are not built are refused; fields that would not (``user``, ``metadata``, …) are
ignored. Numbers and texts are taken as they are: ``"5"`` is no number.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from zellige.engine.api import Grammar, RequestRejected, Sampling

#: Fields of OpenAI's API that ask for something else than text from this model.
NOT_BUILT = frozenset((
    "audio", "best_of", "echo", "function_call", "functions", "modalities", "prediction", "suffix", "tools",
    "web_search_options",
))  # fmt: skip
_MEAN_NOTHING: dict[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,), "modalities": (["text"],)}


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class ImageUrl(_Body):
    url: str
    detail: str | None = None


class TextContent(_Body):
    type: Literal["text"]
    text: str


class ImageContent(_Body):
    type: Literal["image_url"]
    image_url: ImageUrl

    @field_validator("image_url", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value


Content = Annotated[TextContent | ImageContent, Field(discriminator="type")]


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: list[Content] = []

    @field_validator("content", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [{"type": "text", "text": value}] if value else []
        return [] if value is None else value


class JsonSchema(_Body):
    name: str = ""
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("a response format of type json_schema needs its json_schema")
        return self


class StructuredOutputs(_Body):
    """vLLM's ``structured_outputs``: one of the three."""

    json_: Annotated[dict[str, Any] | bool | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None


class StreamOptions(_Body):
    include_usage: bool = False


class GenerationBody(_Body):
    """What both endpoints share. From ``min_p`` on they are extensions, spelled as vLLM spells or spelled them."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    top_k: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    repetition_stop: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_built(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError("the body is no JSON object")
        for name in sorted(NOT_BUILT & body.keys()):
            value = body.get(name)
            if value and value not in _MEAN_NOTHING.get(name, ()):
                raise ValueError(f"{name} is not supported by this server; leave it out")
        return body

    @property
    def usage_in_stream(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int, logprobs: int | None) -> Sampling:
        """The engine's form; raises RequestRejected. What is left out is greedy and goes on to the context's end."""
        asked: dict[str, Any] = {
            "max_tokens": max_tokens,
            "stop": (self.stop,) if isinstance(self.stop, str) else None if self.stop is None else tuple(self.stop),
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "logit_bias": self._biases(),
            "logprobs": logprobs,
            # vLLM writes "all" as -1
            "top_k": 0 if self.top_k == -1 else self.top_k,
        }
        plain = (
            "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "min_p", "min_tokens",
            "ignore_eos", "repetition_stop",
        )  # fmt: skip
        asked |= {name: getattr(self, name) for name in plain}
        return Sampling(**{name: value for name, value in asked.items() if value is not None})

    def grammar(self) -> Grammar | None:
        """What the answer has to be; raises RequestRejected where two things are asked for."""
        found: list[Grammar] = []
        if self.response_format is not None and self.response_format.json_schema is not None:
            found.append(Grammar("json_schema", json.dumps(self.response_format.json_schema.schema_)))
        elif self.response_format is not None and self.response_format.type == "json_object":
            found.append(Grammar("json_object"))
        outputs = self.structured_outputs or StructuredOutputs()
        schemas = (outputs.json_, self.guided_json)
        regexes = (outputs.regex, self.guided_regex)
        choices = (outputs.choice, self.guided_choice)
        found += [Grammar("json_schema", json.dumps(schema)) for schema in schemas if schema is not None]
        found += [Grammar("regex", regex) for regex in regexes if regex is not None]
        found += [Grammar("choice", choices=tuple(several)) for several in choices if several is not None]
        if len(found) > 1:
            raise RequestRejected("the answer is asked to be several things; give one response_format or grammar")
        return found[0] if found else None

    def _biases(self) -> tuple[tuple[int, float], ...] | None:
        if self.logit_bias is None:
            return None
        try:
            return tuple((int(token), bias) for token, bias in self.logit_bias.items())
        except ValueError as error:
            raise RequestRejected("logit_bias takes token ids as its keys") from error


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestRejected("top_logprobs needs logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(GenerationBody):
    prompt: str | Annotated[list[str], Field(min_length=1)]
    logprobs: int | None = None

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


_FORMS = (
    ImageUrl, TextContent, ImageContent, ChatMessage, JsonSchema, ResponseFormat, StructuredOutputs, StreamOptions,
    ChatBody, CompletionBody,
)  # fmt: skip
#: Every name that a body may have; other keys in it are its sender's own.
FIELDS = frozenset(field.alias or name for form in _FORMS for name, field in form.model_fields.items())
#: Those that stand at its top.
OUTER_FIELDS = frozenset((*ChatBody.model_fields, *CompletionBody.model_fields, *NOT_BUILT))
