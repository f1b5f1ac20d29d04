"""The columns of every Parquet file of the store, in order and typed. Imports nothing of ours.

A file never takes its types from its first rows: a part of failures only has the same columns as any other.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 2

_TILE = pa.struct(
    [
        ("x", pa.int32()),
        ("y", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("scale", pa.float64()),
        ("answer", pa.string()),
        ("confidence", pa.float64()),
    ]
)
_STAMP = {b"zellige.schema_version": str(SCHEMA_VERSION).encode()}

#: Every column of ``parts/*.parquet``, in order; ``AnswerRow`` has one field a column.
ANSWERS = pa.schema(
    [
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("member", pa.string()),
        pa.field("ordinal", pa.int64()),
        pa.field("page", pa.int32()),
        pa.field("content_sha256", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("frames", pa.int32()),
        pa.field("task", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error_kind", pa.string()),
        pa.field("error", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("tiles", pa.list_(_TILE), nullable=False),
        pa.field("image_tokens", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("mean_logprob", pa.float64()),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("decode_s", pa.float64()),
        pa.field("engine_s", pa.float64()),
        pa.field("recipe", pa.string(), nullable=False),
        pa.field("engine", pa.string()),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ],
    metadata=_STAMP,
)

#: Every column of ``items.parquet``. ``file_version`` is another one once the file or container was changed.
ITEMS = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("member", pa.string()),
        pa.field("ordinal", pa.int64()),
        pa.field("page", pa.int32()),
        pa.field("size_bytes", pa.int64()),
        pa.field("file_version", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("error_kind", pa.string()),
        pa.field("error", pa.string()),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
    ],
    metadata=_STAMP,
)

#: Every column of ``health/throughput-*.parquet``: one row is one worker's share of a run, so the sums over rows hold.
#: ``items``, ``rows`` and ``failed`` are of first answers: what a retry asks again is in the requests and seconds only.
#: ``decode_s`` is turning bytes into pixels, ``engine_s`` waiting for answers; the four after it are the engine's own.
THROUGHPUT = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("items", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("tiles", pa.int64()),
        pa.field("requests", pa.int64()),
        pa.field("retries", pa.int64()),
        pa.field("second_tries", pa.int64()),
        pa.field("images", pa.int64()),
        pa.field("image_tokens", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("wall_s", pa.float64()),
        pa.field("load_s", pa.float64()),
        pa.field("plan_s", pa.float64()),
        pa.field("decode_s", pa.float64()),
        pa.field("engine_s", pa.float64()),
        pa.field("commit_s", pa.float64()),
        pa.field("preprocess_s", pa.float64()),
        pa.field("vision_s", pa.float64()),
        pa.field("prefill_s", pa.float64()),
        pa.field("generate_s", pa.float64()),
    ],
    metadata=_STAMP,
)

#: Every column of ``health/kernels-*.parquet``: one row is one operator on one device in one worker's share of a run.
KERNELS = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("launches", pa.int64(), nullable=False),
        pa.field("checked", pa.int64(), nullable=False),
        pa.field("max_rel_l2", pa.float64()),
        pa.field("tolerance", pa.float64()),
        pa.field("nonfinite", pa.int64(), nullable=False),
        pa.field("guard_hits", pa.int64(), nullable=False),
        pa.field("repeat_mismatches", pa.int64(), nullable=False),
        pa.field("launch_errors", pa.int64(), nullable=False),
        pa.field("device_ms", pa.float64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
    ],
    metadata=_STAMP,
)

#: Every column of ``health/timeline-*.parquet``: how one worker stood at one moment. ``items`` to ``completion_tokens``
#: are its counts so far; what the engine or the machine does not tell is null. ``temperature_c``, ``power_w`` and
#: ``device_memory_bytes`` are of the hottest GPU, of all GPUs and of all GPUs of the worker's machine.
TIMELINE = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("items", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("in_flight", pa.int64()),
        pa.field("engine_running", pa.int64()),
        pa.field("engine_waiting", pa.int64()),
        pa.field("temperature_c", pa.float64()),
        pa.field("power_w", pa.float64()),
        pa.field("device_memory_bytes", pa.int64()),
    ],
    metadata=_STAMP,
)

#: Every column of ``reviews/*.parquet``: what a person said of one row; the latest word counts. ``verdict`` is
#: accepted, edited (``answer`` is the right one), rejected, or withdrawn: what was said before is taken back.
#: ``row_created_at`` is the row's: a row that was answered again since has not been reviewed.
REVIEWS = pa.schema(
    [
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("reviewer", pa.string(), nullable=False),
        pa.field("row_created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ],
    metadata=_STAMP,
)
