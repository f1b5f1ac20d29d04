"""``openai-batch``: every row as a line of the output file of OpenAI's batch API.

``custom_id`` is that of the request where it was asked one question, or else the row's id. A row that is ok has a chat
completion as ``response.body``: the kept columns are its ``metadata``, and ``zellige`` in it says which item and
question. A failed one has an ``error``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zellige.data.exports.base import REJECTED, Exported, ExportOptions, Row, rows, to_json
from zellige.data.exports.target import new_file
from zellige.data.run import Run

_PLACE = ("item_id", "uri", "member", "ordinal", "page", "question_id", "question", "content_sha256")


def write(run: Run, dest: Path, options: ExportOptions, done: Exported) -> None:
    """Write the file ``dest``; raises ExportError."""
    with new_file(run, dest, options) as file:
        for row in rows(run):
            if row["status"] == "skipped":  # nobody asked
                done.left_out["skipped"] += 1
                continue
            file.write(to_json(_line(row, len(run.recipe.questions) == 1)).encode() + b"\n")
            done.rows += 1
    done.files = 1


def _line(row: Row, alone: bool) -> dict[str, Any]:
    """``alone``: no other row is of the same request."""
    name = row["metadata"].get("custom_id") if alone else None
    line = {"id": f"batch_req_{row['row_id']}", "custom_id": row["row_id"] if name is None else name}
    if row["review"] == "rejected":
        return line | {"response": None, "error": {"code": "rejected", "message": REJECTED}}
    if row["status"] != "ok":
        error = {"code": row["error_kind"], "message": row["error"] or ""}
        return line | {"response": None, "error": error}
    response = {"status_code": 200, "request_id": row["row_id"], "body": _completion(row)}
    return line | {"response": response, "error": None}


def _completion(row: Row) -> dict[str, Any]:
    prompt, completion = row["prompt_tokens"] or 0, row["completion_tokens"] or 0
    return {
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
