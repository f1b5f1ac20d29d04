"""Files and folders outside this machine, through fsspec.

A walk tells images and containers by their suffix alone: a look at the bytes would cost one request a file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from zellige.data.schema import ErrorKind, Item
from zellige.data.sniff import IMAGE_SUFFIXES
from zellige.data.sources.base import ReadError
from zellige.data.sources.containers import kind_by_name
from zellige.data.sources.files import Found
from zellige.data.sources.members import DOCUMENT_SUFFIXES, HIDDEN
from zellige.data.sources.storage import entries, remote_file, remote_uri
from zellige.data.sources.wanted import Wanted, is_run


def walk_remote(top: str, wanted: Wanted, ignored: Counter[str]) -> Iterator[Item | Found]:
    """The images and containers below the literal address ``top``: of each folder its files, then its folders."""
    top = top.rstrip("/") + "/"
    pending, entered, stores = [top], set[str](), set[str]()
    while pending:
        folder = pending.pop()
        if folder in entered:
            continue
        entered.add(folder)
        try:
            listed = entries(folder)
        except ReadError as error:
            yield Item(
                remote_uri(folder), error_kind=error.kind, error=f"this folder cannot be listed: {error.message}"
            )
            continue
        names = [url.rpartition("/")[2].encode("utf-8", "surrogateescape") for url, *_ in listed]
        if is_run(names, {name for name, (_, kind, *_) in zip(names, listed, strict=True) if kind == "directory"}):
            store = folder.rstrip("/").rpartition("/")[0]
            ignored["a store of answers"] += store not in stores
            stores.add(store)
            continue
        folders = []
        for base, (url, kind, size, version) in zip(names, listed, strict=True):
            name = url[len(top) :].encode("utf-8", "surrogateescape")
            if base.startswith(HIDDEN):
                ignored["hidden"] += 1
            elif kind == "directory" and wanted.excludes_folder(name):
                ignored["excluded"] += 1
            elif kind == "directory":
                folders.append(url + "/")
            elif found := _of_entry(url, name, size, version, wanted, ignored):
                yield found
        pending += reversed(folders)


def named_remote(url: str, size: int | None, version: str | None) -> Item | Found:
    """A remote file that was named: an item whatever it is, or what holds several by its suffix."""
    name = url.partition("?")[0] if url.startswith("http") else url
    kind = kind_by_name(name.encode("utf-8", "surrogateescape"))
    if kind is not None or os.path.splitext(name)[1].lower().encode() in DOCUMENT_SUFFIXES:
        return Found(remote_file(url, size, version), kind)
    return Item(remote_uri(url), size_bytes=size, file_version=version)


def _of_entry(
    url: str, name: bytes, size: int | None, version: str | None, wanted: Wanted, ignored: Counter[str]
) -> Item | Found | None:
    kind, suffix = kind_by_name(name), os.path.splitext(name)[1].lower()
    if not wanted.in_glob(name):
        return None
    if not wanted.file(name, kind):
        ignored["excluded"] += 1
    elif kind is not None:
        return Found(remote_file(url, size, version), kind, included=wanted.included(name))
    elif suffix in DOCUMENT_SUFFIXES or suffix in IMAGE_SUFFIXES:
        return named_remote(url, size, version)
    else:
        ignored["not an image"] += 1
    return None


def not_there(uri: str) -> Item:
    """The failed item of an address where there is nothing."""
    return Item(uri, error_kind=ErrorKind.NOT_FOUND, error="there is nothing at this address")
