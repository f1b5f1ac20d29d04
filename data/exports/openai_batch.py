"""``openai-batch``: the lines of OpenAI's batch API: rows as its output file has them, requests from its input file.

A line out holds the row's id as ``custom_id`` and a chat completion as ``response.body``; the kept columns are the
body's ``metadata``, and ``zellige`` in it says which item and question. A line in is a request of a chat completion
whose images are ``data:`` or ``file://`` addresses.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige.data.exports.base import Exported, ExportOptions, Row, ok_rows, to_json
from zellige.data.exports.target import new_file
from zellige.data.run import Run
from zellige.data.uri import from_uri, is_file_uri

CHAT_URL = "/v1/chat/completions"
_PLACE = ("item_id", "uri", "member", "ordinal", "page", "question_id", "question", "content_sha256")


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the file ``dest``; raises ExportError."""
    with new_file(dest, options.overwrite) as file:
        for row in ok_rows(run, done):
            file.write(to_json(_line(row)).encode() + b"\n")
            done.rows += 1
    done.files = 1


def _line(row: Row) -> dict[str, Any]:
    prompt, completion = row["prompt_tokens"] or 0, row["completion_tokens"] or 0
    body = {
        "id": f"chatcmpl-{row['row_id']}",
        "object": "chat.completion",
        "created": int(row["created_at"].timestamp()),
        "model": row["engine"] or "",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": row["answer"], "refusal": None},
                "logprobs": None,
                # The API has no word for the other ways an answer that was kept may end.
                "finish_reason": "length" if row["finish_reason"] == "length" else "stop",
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        "metadata": row["metadata"],
        "zellige": {name: row[name] for name in _PLACE},
    }
    return {
        "id": f"batch_req_{row['row_id']}",
        "custom_id": row["row_id"],
        "response": {"status_code": 200, "request_id": row["row_id"], "body": body},
        "error": None,
    }


class BadRequestError(ValueError):
    """A line of a batch file is no request that can be answered; the message names the line."""


@dataclass(frozen=True)
class BatchRequest:
    """One request: the texts of its messages by role, its images as addresses, and how to sample (None: not said)."""

    custom_id: str
    model: str
    system: str
    text: str
    images: tuple[str, ...]
    max_tokens: int | None
    temperature: float | None
    seed: int | None


def read_requests(path: Path) -> Iterator[BatchRequest | BadRequestError]:
    """The requests of a batch input file in order, one line in memory at a time; a bad line comes as its error.

    A ``custom_id`` that was there before is an error too. Raises OSError where the file cannot be read.
    """
    seen: set[str] = set()
    with path.open("rb") as file:  # binary: lines end at line feeds only
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                request = _request(json.loads(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line))
                if request.custom_id in seen:
                    raise ValueError(f"custom_id {request.custom_id!r} is used twice")
                seen.add(request.custom_id)
            except (ValueError, RecursionError) as error:
                yield BadRequestError(f"{path}, line {number}: {error}")
            else:
                yield request


def image_bytes(address: str) -> bytes:
    """The encoded bytes of an image of a request; raises ValueError for an address of another kind, or OSError."""
    if is_file_uri(address):
        return Path(from_uri(address).decode("utf-8", "surrogateescape")).read_bytes()
    head, comma, data = address.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise ValueError(f"an image at {address[:80]!r} is not read; give a data:image/...;base64, or file:// address")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"an image is no base64 ({error})") from error


def _request(line: Any) -> BatchRequest:
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
    return BatchRequest(
        custom_id=custom_id,
        model=_get(body, "model", str),
        system="\n".join(texts["system"]),
        text="\n".join(texts["user"]),
        images=tuple(images),
        max_tokens=_number(body, "max_completion_tokens", int) or _number(body, "max_tokens", int),
        temperature=_number(body, "temperature", float),
        seed=_number(body, "seed", int),
    )


def _get(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(name), kind):
        raise ValueError(f"{name} is missing, or is no {kind.__name__}")
    return value[name]


def _number(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise ValueError(f"{name} is {value!r}; give a number")
    return kind(value)
