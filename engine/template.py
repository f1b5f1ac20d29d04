"""The checkpoint's chat template: Jinja in a sandbox, because a template is somebody else's program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zellige.engine.api import ImagePart, Message, RequestRejected
from zellige.engine.checkpoint import Checkpoint, CheckpointError


def _refuse(message: str) -> NoReturn:
    raise RequestRejected(f"the chat template refuses these messages: {message}")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """Renders messages to the text that the model was trained on, ready for the assistant's turn."""

    def __init__(self, source: str, variables: dict[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._variables = variables
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error}") from error

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> ChatTemplate:
        """From chat_template.jinja, or from where older folders keep it: tokenizer_config.json, chat_template.json."""
        path = checkpoint.folder / "chat_template.jinja"
        tokenizer = checkpoint.json("tokenizer_config.json", required=False)
        source = path.read_text(encoding="utf-8") if path.is_file() else None
        source = source or tokenizer.get("chat_template")
        source = source or checkpoint.json("chat_template.json", required=False).get("chat_template")
        if not isinstance(source, str):
            raise CheckpointError(f"{checkpoint.folder}: no chat_template.jinja; copy it from the original checkpoint")
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        tokens = {n: t["content"] if isinstance(t := tokenizer.get(n), dict) else t for n in names}
        return cls(source, {n: t for n, t in tokens.items() if t is not None})

    def render(self, messages: Sequence[Message], text: Callable[[str], str]) -> str:
        """The prompt; every text passes through ``text`` first. Raises RequestRejected where the template refuses."""
        plain = [{"role": m.role, "content": _content(m, text)} for m in messages]
        try:
            return self._template.render(messages=plain, add_generation_prompt=True, **self._variables)
        except TemplateError as error:
            raise RequestRejected(f"the chat template cannot render these messages: {error}") from error


def _content(message: Message, text: Callable[[str], str]) -> str | list[dict[str, str]]:
    """A text alone is a string, as templates expect it; with images the parts are a list."""
    if not any(isinstance(p, ImagePart) for p in message.parts):
        return "".join(text(p.text) for p in message.parts if not isinstance(p, ImagePart))
    return [
        {"type": "image"} if isinstance(p, ImagePart) else {"type": "text", "text": text(p.text)} for p in message.parts
    ]
