"""Small images and archives for the tests of sources."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from zellige.data.schema import Item, Question, Recipe
from zellige.data.sources import Source, SourceOptions, open_source


def image(number: int = 0, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (number % 256, 7, 9)).save(file, kind)
    return file.getvalue()


def tar_of(members: Sequence[tuple[str, bytes]], mode: str = "w", **how: Any) -> bytes:
    if mode == "w:zst":  # not known to tarfile before Python 3.14
        return bytes(pa.compress(tar_of(members, **how), "zstd", asbytes=True))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **how) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture
def png() -> Callable[..., bytes]:
    """``png(number, kind)``: another image for each number."""
    return image


@pytest.fixture
def make_tar() -> Callable[..., bytes]:
    """``make_tar([(name, bytes), …], mode)``."""
    return tar_of


@pytest.fixture
def listed() -> Callable[..., tuple[Source, list[Item]]]:
    """``listed(inputs, **options)``: the source, and its items."""

    def work(*inputs: str | bytes | Path, **options: Any) -> tuple[Source, list[Item]]:
        source = open_source(inputs, SourceOptions(**options))
        return source, list(source.items())

    return work


@pytest.fixture
def recipe() -> Recipe:
    """Any recipe."""
    return Recipe("ask", (Question("q", "?"),), "{question}", "auto", {}, {}, "demo", "f" * 32, "float32")
