"""Which column of a table holds its images.

In this order: the column that was named; ``image`` of structs or bytes; the only other column of structs or bytes with
a known name, or at all; the first column of text with a known name. Where two could be meant, none is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from zellige.data.schema import ErrorKind
from zellige.data.sources.base import ReadError

Form = Literal["struct", "bytes", "text"]
#: Names of columns that hold encoded images (lower case).
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "bytes", "image_bytes", "image_data")
#: Names of columns of paths, addresses or base64, the likeliest first.
_TEXTS = (
    *("image", "image_path", "img_path", "image_base64", "base64", "file_name", "filename", "filepath", "file_path"),
    *("path", "file", "image_file", "image_url", "img_url", "url", "image_uri", "uri", "img", "picture", "photo"),
    *("jpg", "jpeg", "png", "webp", "image_bytes", "image_data"),
)


class NoImages(ReadError):
    """By its columns, this table holds no images: none was named, and none is of bytes or has a known name."""


@dataclass(frozen=True)
class ImageColumn:
    """``parts`` lead to the column, from the table into structs; ``leaves`` are what has to be read of it."""

    parts: tuple[str, ...]
    form: Form
    leaves: tuple[str, ...]


def image_column(schema: pa.Schema, named: str | None) -> ImageColumn:
    """The column of images; raises ReadError that lists the columns where there is none or it cannot be told."""
    if named is not None:
        parts = column_parts(schema, named)
        if (column := _as_images(parts, _type_at(schema, parts))) is None:
            raise _refused(schema, f"column {named} holds no images, paths or addresses; name another with --column")
        return column
    columns = [c for field in schema if (c := _as_images((field.name,), field.type)) is not None]
    # A struct of a path alone may be anything; it has to be named.
    binary = [c for c in columns if c.form == "bytes" or c.leaves[0].endswith(".bytes")]
    for wanted in (["image"], _IMAGES):
        if len(found := [c for c in binary if c.parts[0].lower() in wanted]) == 1:
            return found[0]
        if found:
            listed = ", ".join(c.parts[0] for c in found)
            raise _refused(schema, f"the images may be in any of {listed}; name one with --column")
    text = [c for name in _TEXTS for c in columns if c.form == "text" and c.parts[0].lower() == name]
    if len(binary) == 1 and (not text or binary[0].form == "struct"):
        return binary[0]
    if text and not binary:
        return text[0]
    refused = _refused(schema, "it cannot be told which column holds the images; name it with --column")
    if any(_holds_bytes(field.type) for field in schema) or any(c.form == "struct" for c in columns):
        raise refused
    raise NoImages(refused.kind, refused.message)


def column_parts(schema: pa.Schema, named: str) -> tuple[str, ...]:
    """The way to a column by its name, or by a dotted path into structs; raises ReadError where there is none."""
    if schema.names.count(named) > 1:
        raise _refused(schema, f"there are several columns {named}; give them different names")
    if named in schema.names:
        return (named,)
    parts = tuple(named.split("."))
    if _type_at(schema, parts) is None:
        raise _refused(schema, f"there is no column {named}")
    return parts


def _type_at(schema: pa.Schema, parts: tuple[str, ...]) -> pa.DataType | None:
    fields: pa.Schema | pa.StructType = schema
    for part in parts:
        if not isinstance(fields, (pa.Schema, pa.StructType)) or fields.names.count(part) != 1:
            return None
        fields = _plain(fields.field(part).type)
    return fields


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type below extensions and dictionaries."""
    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def _as_images(parts: tuple[str, ...], kind: pa.DataType | None) -> ImageColumn | None:
    kind, name = None if kind is None else _plain(kind), ".".join(parts)
    if kind is None:
        return None
    if pa.types.is_struct(kind):
        leaves = [
            child.name
            for child in kind
            if (child.name == "bytes" and _is_binary(child.type)) or (child.name == "path" and _is_text(child.type))
        ]
        return ImageColumn(parts, "struct", tuple(f"{name}.{leaf}" for leaf in sorted(leaves))) if leaves else None
    if _is_binary(kind):
        return ImageColumn(parts, "bytes", (name,))
    return ImageColumn(parts, "text", (name,)) if _is_text(kind) else None


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether a type is of bytes, or has any in its lists and structs."""
    kind = _plain(kind)
    return _is_binary(kind) or any(_holds_bytes(kind.field(n).type) for n in range(kind.num_fields))


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(_plain(kind)) for test in tests)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(_plain(kind)) for test in tests)


def _refused(schema: pa.Schema, what: str) -> ReadError:
    listed = ", ".join(f"{field.name} ({_short(field.type)})" for field in schema) or "none"
    return ReadError(ErrorKind.UNSUPPORTED_FORMAT, f"{what}. The columns are: {listed}")


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 60 else text[:57] + "..."
