"""A request of OpenAI's batch API, of the kind that asks a chat completion about images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHAT_URL = "/v1/chat/completions"


@dataclass(frozen=True)
class BatchRequest:
    """One request: its name, the texts of its messages by role, and its images as addresses.

    Which model answers it, and with which sampling, is the run's to say.
    """

    custom_id: str
    system: str
    text: str
    images: tuple[str, ...]

    @property
    def question(self) -> str:
        """What the model is told: the system's words before the user's."""
        return "\n".join(filter(None, (self.system, self.text)))


def parse_request(line: Any) -> BatchRequest:
    """The request of a line, which is JSON that was read; raises ValueError that says what is wrong with it."""
    custom_id = _get(line, "custom_id", str)
    if _get(line, "method", str) != "POST" or _get(line, "url", str) != CHAT_URL:
        raise ValueError(f"only POST requests of {CHAT_URL} are answered")
    body = _get(line, "body", dict)
    texts: dict[str, list[str]] = {"system": [], "user": []}
    images: list[str] = []
    for message in _get(body, "messages", list):
        role = {"developer": "system"}.get(role := _get(message, "role", str), role)
        if role not in texts:
            raise ValueError(f"a message of role {role!r} is not answered; give system and user messages")
        content = message.get("content")
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else _get(message, "content", list):
            if (kind := _get(part, "type", str)) == "text":
                texts[role].append(_get(part, "text", str))
            elif kind == "image_url":
                images.append(_get(_get(part, "image_url", dict), "url", str))
            else:
                raise ValueError(f"a part of type {kind!r} is not answered; give text and image_url")
    if not images:
        raise ValueError("the request holds no image")
    if not any(map(str.strip, texts["user"])):
        raise ValueError("the request asks nothing: it has no text of the user")
    return BatchRequest(
        custom_id=custom_id,
        system="\n".join(texts["system"]),
        text="\n".join(texts["user"]),
        images=tuple(images),
    )


def _get(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(name), kind):
        raise ValueError(f"{name} is missing, or is no {kind.__name__}")
    return value[name]
