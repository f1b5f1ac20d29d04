"""The card of a data set: what ``datasets`` reads, in YAML, and what people want to know of the run."""

from __future__ import annotations

import json
from typing import Any

from zellige.data.exports.base import Exported
from zellige.data.run import Run


def card(run: Run, features: list[dict[str, Any]], done: Exported) -> str:
    """The text of ``README.md``; the YAML is JSON, which is YAML too, so that no name needs quoting by hand."""
    head = {
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}],
        "dataset_info": {"features": features},
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in head.items()),
        "---",
        "",
        f"# {run.recipe.task}: {run.run_id}",
        "",
        (
            f"{done.rows:,} answers by `{run.recipe.model_name}` ({run.recipe.model_dtype}, fingerprint "
            f"`{run.recipe.model_fingerprint}`), exported from a run of zellige that began at {run.started_at}."
        ),
        "",
        *(f"- left out: {count:,}, {reason}" for reason, count in sorted(done.left_out.items())),
        *([f"- not answered yet: {done.items_without_rows:,} items"] if done.items_without_rows else []),
        "",
        "Answers are a model's words about each image and may be wrong. `metadata` is JSON text: the columns that were",
        "kept beside the images. The images keep the rights that they had.",
        "",
        "## Recipe",
        "",
        # Indented, and not fenced: a prompt may hold any fence.
        *(f"    {line}" for line in json.dumps(json.loads(run.recipe.to_json()), indent=2).split("\n")),
        "",
    ]
    return "\n".join(lines)
