"""The records of the data room: items, questions, recipes and answer rows; the columns they are stored in."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from zellige.data.columns import ANSWERS, ITEMS, KERNELS, SCHEMA_VERSION, THROUGHPUT
from zellige.data.globs import tail_regex

__all__ = [
    "ANSWERS",
    "ITEMS",
    "ITEM_QUESTION",
    "KERNELS",
    "REQUEST_ID",
    "SCHEMA_VERSION",
    "THROUGHPUT",
    "AnswerRow",
    "ErrorKind",
    "Item",
    "Question",
    "Recipe",
    "Status",
    "Task",
    "TileAnswer",
    "Tiling",
    "item_id",
    "row_id",
    "storable",
    "to_table",
]

Task = Literal["caption", "ask", "read"]
Status = Literal["ok", "failed", "skipped"]
Tiling = Literal["auto", "off"] | int


#: The question that is the item's own, and the metadata that it is in.
REQUEST_ID, ITEM_QUESTION = "request", "question"


class ErrorKind(StrEnum):
    """Why a row failed: the closed list that a user may filter and retry by."""

    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TOO_LARGE = "too_large"
    ENCRYPTED = "encrypted"
    EMPTY = "empty"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    ENGINE_REJECTED = "engine_rejected"
    ENGINE_FAILED = "engine_failed"
    NONFINITE = "nonfinite"
    REPETITION = "repetition"
    LENGTH = "length"
    INVALID_OUTPUT = "invalid_output"
    CANCELLED = "cancelled"


def _stable_hash(*parts: str | int | None) -> str:
    """32 hex characters that depend on every part and on where one part ends and the next begins."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:32]


def item_id(uri: str, member: str | None = None, ordinal: int | None = None, page: int | None = None) -> str:
    """The name of an item that stays the same in every run: 32 hex characters."""
    return _stable_hash(uri, member, ordinal, page)


def row_id(item: str, question_id: str, recipe_fingerprint: str) -> str:
    """The name of the row of one item and one question under one recipe: 32 hex characters."""
    return _stable_hash(item, question_id, recipe_fingerprint)


@dataclass(frozen=True)
class Item:
    """One image to ask about. ``error_kind`` is set where the plan already knows that it cannot be read; ``error``
    without a kind says why there is nothing to ask about, and its rows are skipped.

    ``uri`` is the percent-encoded address of the file or container, ``member`` the name inside, ``ordinal`` its place
    there, ``page`` counts from 1; ``width`` and ``height`` are pixels of the upright image, where a header was read.
    ``file_version`` is another one once the file at ``uri`` was changed (its size and time, or an object's etag), and
    None where its storage does not tell.
    """

    uri: str
    member: str | None = None
    ordinal: int | None = None
    page: int | None = None
    size_bytes: int | None = None
    width: int | None = None
    height: int | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    item_id: str = ""
    file_version: str | None = None

    def __post_init__(self) -> None:
        if not self.item_id:
            object.__setattr__(self, "item_id", item_id(self.uri, self.member, self.ordinal, self.page))


@dataclass(frozen=True)
class Question:
    """One question to every item, or to those that the glob ``uri`` names.

    Where none is asked, ``question_id`` is the task's name and ``text`` is empty; it is also empty for
    ``REQUEST_ID``, the question that each item brings along as its metadata ``ITEM_QUESTION``.
    """

    question_id: str
    text: str = ""
    uri: str | None = None

    def of(self, item: Item) -> Question:
        """This question as it is asked of ``item``."""
        own = self.question_id == REQUEST_ID and not self.text
        return replace(self, text=dict(item.metadata).get(ITEM_QUESTION, "")) if own else self

    def concerns(self, item: Item) -> bool:
        """Whether ``item`` is asked this; one that is not has a ``skipped`` row.

        The glob is for the address of the item, plain or percent-encoded, with the member's name behind it: ``*.png``
        is any name, ``bills/*.tar/**`` the end of a path from a folder on, ``file:///a/b.png`` a whole address.
        """
        if self.uri is None:
            return True
        name = item.uri if item.member is None else f"{item.uri}/{item.member}"
        raw, glob = name.encode("utf-8", "surrogateescape"), tail_regex(self.uri)
        return bool(glob.fullmatch(unquote_to_bytes(raw)) or glob.fullmatch(raw))

    def plain(self) -> dict[str, str]:
        """For a recipe's JSON; a glob that is not set leaves no trace, so that it changes no older fingerprint."""
        return {"question_id": self.question_id, "text": self.text} | ({} if self.uri is None else {"uri": self.uri})


@dataclass(frozen=True)
class TileAnswer:
    """What one tile answered; the box is in pixels of the upright image, ``scale`` is model pixels per image pixel."""

    x: int
    y: int
    width: int
    height: int
    scale: float
    answer: str | None
    confidence: float | None


@dataclass(frozen=True)
class Recipe:
    """Everything that decides an answer. ``model_name`` is for people and is no part of the fingerprint.

    ``sampling`` and ``preprocessing`` hold plain JSON values (numbers, strings, lists, null).
    """

    task: Task
    questions: tuple[Question, ...]
    prompt: str
    tiling: Tiling
    sampling: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    model_name: str
    model_fingerprint: str
    model_dtype: str
    raw: bool = False

    def __post_init__(self) -> None:
        ids = [q.question_id for q in self.questions]
        if not ids:
            raise ValueError("a recipe holds at least one question (a caption has Question('caption'))")
        if twice := sorted(i for i, times in Counter(ids).items() if times > 1):
            raise ValueError(f"question_id must be unique; given more than once: {', '.join(twice)}")

    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["questions"] = [q.plain() for q in self.questions]
        plain["sampling"], plain["preprocessing"] = dict(self.sampling), dict(self.preprocessing)
        return plain

    def _deciding(self) -> dict[str, Any]:
        """The plain form without what does not change an answer, as JSON gives it back (tuples are lists)."""
        plain: dict[str, Any] = json.loads(self.to_json())
        del plain["model_name"]
        return plain

    def to_json(self) -> str:
        """JSON text with sorted keys; ``from_json`` gives an equal recipe back."""
        return json.dumps(self._plain(), sort_keys=True, ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe that ``to_json`` wrote; raises ValueError where keys are missing or unknown."""
        plain = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(plain, dict) or set(plain) != names:
            raise ValueError(f"not a recipe of schema version {SCHEMA_VERSION}: its keys should be {sorted(names)}")
        plain["questions"] = tuple(Question(**q) for q in plain["questions"])
        return cls(**plain)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex characters over everything that decides an answer; stored in each row."""
        canonical = json.dumps(self._deciding(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    def differences(self, other: Recipe) -> list[str]:
        """One line for each setting that differs, "name: ours != theirs"; empty when the fingerprints are equal."""
        ours, theirs = _flat(self._deciding()), _flat(other._deciding())
        return [
            f"{key}: {ours.get(key, 'not set')} != {theirs.get(key, 'not set')}"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]


def _flat(plain: dict[str, Any]) -> dict[str, str]:
    """{"sampling.seed": "7", "questions.colour": '"Which colour?"', …}: one printable value a setting."""
    flat: dict[str, str] = {"questions": json.dumps([q["question_id"] for q in plain["questions"]])}
    for question in plain["questions"]:
        key = f"questions.{question['question_id']}"
        flat |= {key: json.dumps(question["text"])}
        flat |= {f"{key} (uri)": json.dumps(question["uri"])} if "uri" in question else {}
    for key, value in plain.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{k}": json.dumps(v) for k, v in value.items()}
        elif key != "questions":
            flat[key] = json.dumps(value)
    return flat


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(kw_only=True)
class AnswerRow:
    """What became of one item and one question: one field a column of ``ANSWERS``."""

    run_id: str
    row_id: str
    item_id: str
    uri: str
    task: Task
    question_id: str
    recipe: str
    status: Status
    member: str | None = None
    ordinal: int | None = None
    page: int | None = None
    content_sha256: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    question: str | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None
    answer: str | None = None
    finish_reason: str | None = None
    tiles: Sequence[TileAnswer] = ()
    image_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    mean_logprob: float | None = None
    attempts: int = 0
    decode_s: float | None = None
    engine_s: float | None = None
    engine: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(
        cls, run_id: str, recipe: Recipe, item: Item, question: Question, status: Status, **columns: Any
    ) -> AnswerRow:
        """The row of ``item`` and ``question`` with its names filled in; ``columns`` are further fields by name."""
        known: dict[str, Any] = {
            "member": item.member,
            "ordinal": item.ordinal,
            "page": item.page,
            "width": item.width,
            "height": item.height,
            "metadata": dict(item.metadata),
            "question": question.text or None,
            "engine": recipe.model_name,
        }
        return cls(
            run_id=run_id,
            row_id=row_id(item.item_id, question.question_id, recipe.fingerprint),
            item_id=item.item_id,
            uri=item.uri,
            task=recipe.task,
            question_id=question.question_id,
            recipe=recipe.fingerprint,
            status=status,
            **(known | columns),
        )

    def check(self) -> None:
        """Raises ValueError where the columns contradict each other: such a row would mislead whoever reads it."""
        if self.status == "ok" and (self.answer is None or self.error_kind is not None):
            raise ValueError(f"row {self.row_id}: an ok row has an answer and no error_kind")
        if self.status == "failed" and self.error_kind is None:
            raise ValueError(f"row {self.row_id}: a failed row has an error_kind")
        if self.error_kind is not None:
            ErrorKind(self.error_kind)


def storable(text: str | None) -> str | None:
    """``text`` with what UTF-8 cannot hold (half of a surrogate pair) written as a backslash escape."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return storable(str(value))
    if isinstance(value, Mapping):
        return [(_cell(k), _cell(v)) for k, v in value.items()]
    if isinstance(value, TileAnswer):
        return {f.name: _cell(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_cell(v) for v in value]
    return value


def to_table(rows: Sequence[AnswerRow]) -> pa.Table:
    """``rows`` as a table of exactly ``ANSWERS``; raises ValueError for a row that contradicts itself."""
    for row in rows:
        row.check()
    return pa.table([pa.array([_cell(getattr(r, f.name)) for r in rows], f.type) for f in ANSWERS], schema=ANSWERS)
