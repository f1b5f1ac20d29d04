"""Requests of a batch input file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from zellige.data.exports.openai_batch import BadRequestError, BatchRequest, image_bytes, read_requests
from zellige.data.uri import to_uri


def line(custom_id: str = "r1", **changes: Any) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"PNG").decode()}}
    content = [{"type": "text", "text": "Which\u2028colour?"}, picture]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    body = {"model": "m", "messages": messages, "max_tokens": 7, "temperature": 0} | changes.pop("body", {})
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines), encoding="utf-8-sig")
    return path


def test_requests_come_with_their_texts_images_and_sampling(tmp_path: Path) -> None:
    (found,) = read_requests(write(tmp_path / "in.jsonl", line()))
    assert isinstance(found, BatchRequest)
    assert (found.custom_id, found.model, found.system, found.text) == ("r1", "m", "Be brief.", "Which\u2028colour?")
    assert (found.max_tokens, found.temperature, found.seed) == (7, 0.0, None)
    assert [image_bytes(image) for image in found.images] == [b"PNG"]


def test_an_image_may_be_a_file(tmp_path: Path) -> None:
    (path := tmp_path / "é 1.png").write_bytes(b"bytes")
    assert image_bytes(to_uri(path)) == b"bytes"


@pytest.mark.parametrize(
    "address", ["http://example.org/a.png", "data:image/png,x", "data:image/png;base64,@@", "a.png"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="image"):
        image_bytes(address)


BAD: list[tuple[Any, str]] = [
    ([], "custom_id"),
    (line(url="/v1/embeddings"), "POST requests"),
    (line(custom_id=3), "custom_id"),  # type: ignore[arg-type]
    (line(body={"messages": [{"role": "user", "content": "no picture"}]}), "no image"),
    (line(body={"messages": [{"role": "tool", "content": "x"}]}), "role"),
    (line(body={"messages": [{"role": "user", "content": [{"type": "audio"}]}]}), "audio"),
    (line(body={"seed": "x"}), "seed"),
    (line(body={"messages": None}), "messages"),
]


@pytest.mark.parametrize(("bad", "word"), BAD)
def test_a_bad_line_is_named_and_the_next_is_read(tmp_path: Path, bad: Any, word: str) -> None:
    error, good = read_requests(write(tmp_path / "in.jsonl", bad, line("r2")))
    assert isinstance(error, BadRequestError)
    assert "line 1" in str(error)
    assert word in str(error)
    assert isinstance(good, BatchRequest)


def test_what_is_no_json_and_a_second_use_of_an_id_are_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", line(), line())
    path.write_bytes(path.read_bytes() + b"\n{\xff\n")
    kinds = [type(found).__name__ for found in read_requests(path)]
    assert kinds == ["BatchRequest", "BadRequestError", "BadRequestError"]
