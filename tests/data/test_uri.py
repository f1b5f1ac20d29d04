"""Names in any bytes, as text and back."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.data.uri import absolute, from_uri, is_file_uri, to_uri

names = st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b and b"/" not in b and b not in (b".", b".."))


@given(st.lists(names, min_size=1, max_size=4))
def test_any_bytes_come_back(parts):
    path = b"/" + b"/".join(parts)
    uri = to_uri(path)
    assert from_uri(uri) == path
    assert uri.isascii()
    assert not set(uri) & set(" #?%[]*\\\"'") - {"%"}
    assert from_uri(to_uri(os.fsdecode(path))) == path


@given(names, names)
def test_names_that_differ_have_uris_that_differ(a, b):
    assert (to_uri(b"/" + a) == to_uri(b"/" + b)) == (a == b)


def test_relative_names_are_made_absolute_without_following_the_last_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real.png").touch()
    (tmp_path / "link.png").symlink_to("real.png")
    assert from_uri(to_uri("link.png")) == os.fsencode(tmp_path / "link.png")
    assert from_uri(to_uri("./x//y/./z.png")) == os.fsencode(tmp_path / "x/y/z.png")


def test_dots_go_up_from_where_a_link_leads(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert absolute(os.fsencode(tmp_path) + b"/link/../x.png") == os.fsencode(tmp_path / "a/x.png")
    assert absolute(os.fsencode(tmp_path) + b"/link/..") == os.fsencode(tmp_path / "a")


def test_only_local_file_uris_are_paths():
    assert not is_file_uri("file://host/a")
    assert not is_file_uri("/a")
    with pytest.raises(ValueError, match="not a file"):
        from_uri("https://example.org/a.png")
