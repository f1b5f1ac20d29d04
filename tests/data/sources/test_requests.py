"""Files of OpenAI batch requests: one item a request, with its name and question, whatever is wrong with others."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from zellige.data.sources import ReadError, SourceError, open_source, requests
from zellige.data.sources.opening import asks_itself
from zellige.data.uri import to_uri


def data_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def request(custom_id: str = "r1", image: str = "a.png", text: str = "Which colour?", **changes: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]} | changes.pop("body", {})
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def write(path: Path, *lines: Any) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8-sig")
    return path


def test_images_may_be_data_paths_and_addresses(tmp_path: Path, listed: Any, png: Any) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/é 1.png").write_bytes(png(1))
    (tmp_path / "%41.png").write_bytes(png(2))
    images = [data_uri(png(0)), "sub/é 1.png", to_uri(tmp_path / "%41.png"), str(tmp_path / "%41.png")]
    path = write(tmp_path / "in.jsonl", *(request(f"r{n}", image) for n, image in enumerate(images)))
    for given in (path, f"batch:{path}"):
        source, items = listed(given)
        assert [(i.uri, i.member, i.ordinal) for i in items] == [(to_uri(path), f"r{n}", n) for n in range(4)]
        assert [source.read(i) for i in reversed(items)] == [png(2), png(2), png(1), png(0)]
        assert source.local_path(items[1]) is None
        assert source.inputs == (f"batch:{to_uri(path)}",)
        assert listed(*source.inputs)[1] == items
        assert open_source(source.inputs).read(items[3]) == png(2)


def test_name_and_question_come_along(tmp_path: Path, listed: Any) -> None:
    said = [{"role": "developer", "content": "Be brief."}, *request(text="Which\u2028colour?")["body"]["messages"]]
    path = write(tmp_path / "in.jsonl", request("é/1", body={"messages": said}))
    _, (item,) = listed(path)
    assert dict(item.metadata) == {"custom_id": "é/1", "question": "Be brief.\nWhich\u2028colour?"}


BAD: list[tuple[Any, str]] = [
    ("[]", "custom_id"),
    ("{cut", "no JSON"),
    ("[" * 100_000, "no JSON"),
    (request(url="/v1/embeddings"), "POST requests"),
    (request(custom_id=3), "custom_id"),  # type: ignore[arg-type]
    (request("r1"), "used twice"),
    (request(body={"messages": [{"role": "user", "content": "no picture"}]}), "no image"),
    (request(text=" "), "asks nothing"),
    (request(body={"messages": [{"role": "tool", "content": "x"}]}), "role"),
    (request(body={"messages": [{"role": "user", "content": [{"type": "audio"}]}]}), "audio"),
    (request(body={"messages": None}), "messages"),
]


@pytest.mark.parametrize(("bad", "word"), BAD)
def test_a_bad_line_is_one_failed_item_that_names_it(
    tmp_path: Path, listed: Any, png: Any, bad: Any, word: str
) -> None:
    path = write(tmp_path / "in.jsonl", request("r1", data_uri(png(1))), "", bad, request("r2", data_uri(png(2))))
    source, (first, failed, last) = listed(f"batch:{path}")
    assert [i.error_kind for i in (first, failed, last)] == [None, "unreadable", None]
    assert failed.error.startswith("line 3: ")
    assert word in failed.error
    assert (source.read(last), source.read(first)) == (png(2), png(1))
    assert len({i.item_id for i in (first, failed, last)}) == 3


def test_several_images_in_one_request_fail_by_name(tmp_path: Path, listed: Any) -> None:
    many = request()
    many["body"]["messages"] *= 2
    _, (item,) = listed(write(tmp_path / "in.jsonl", many))
    assert (item.member, item.error_kind) == ("r1", "unsupported_format")
    assert "2 images" in item.error


@pytest.mark.parametrize(
    ("image", "kind"),
    [("gone.png", "not_found"), ("data:image/png;base64,@@", "unreadable"), ("data:image/png", "unreadable")],
)
def test_an_image_that_cannot_be_had_fails_when_it_is_read(tmp_path: Path, listed: Any, image: str, kind: str) -> None:
    source, (item,) = listed(write(tmp_path / "in.jsonl", request(image=image)))
    with pytest.raises(ReadError) as caught:
        source.read(item)
    assert caught.value.kind == kind


def test_a_line_that_is_too_long_fails_alone(tmp_path: Path, listed: Any, png: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(requests, "LONGEST_LINE_BYTES", 1000)
    path = write(tmp_path / "in.jsonl", request(text="x" * 2500), request("r2", data_uri(png())))
    source, (long, short) = listed(path)
    assert (long.error_kind, short.member) == ("unreadable", "r2")
    assert "longer than 1,000 bytes" in long.error
    assert source.read(short) == png()


def test_what_is_no_file_of_requests_stays_a_list(tmp_path: Path, listed: Any, png: Any) -> None:
    (tmp_path / "a.png").write_bytes(png())
    path = write(tmp_path / "l.jsonl", {"path": "a.png", "custom_id": "x"})
    assert [i.uri for i in listed(path)[1]] == [to_uri(tmp_path / "a.png")]
    assert not asks_itself([str(path)])
    batch = str(write(tmp_path / "in.jsonl", request()))
    assert asks_itself([batch, f"batch:{path}"])
    assert not asks_itself([batch, str(path)])


def test_nothing_there_and_nothing_in_it_are_told(tmp_path: Path, listed: Any) -> None:
    _, (item,) = listed(f"batch:{tmp_path}/gone.jsonl")
    assert item.error_kind == "not_found"
    (tmp_path / "empty.jsonl").write_bytes(b"")
    _, (item,) = listed(f"batch:{tmp_path}/empty.jsonl")
    assert item.error_kind == "empty"
    with pytest.raises(SourceError, match="after the colon"):
        listed("batch:")
