"""From the name of a format to its writer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from zellige.data.exports import coco, hf, jsonl, openai_batch, txt, webdataset
from zellige.data.exports.base import Exported, ExportError, ExportOptions
from zellige.data.run import Run

Writer = Callable[[Run, Path, ExportOptions, Exported], None]
FORMATS: Mapping[str, Writer] = {
    "jsonl": jsonl.write,
    "txt": txt.write,
    "webdataset": webdataset.write,
    "hf": hf.write,
    "coco": coco.write,
    "openai-batch": openai_batch.write,
}


def export_run(run: Run, to: str, dest: Path | None, options: ExportOptions) -> Exported:
    """Write what ``run`` has answered so far; ``dest`` is None for text files beside the images.

    Raises ExportError, SourceError where the run's inputs cannot be opened any more, and what the ledger raises.
    """
    if to not in FORMATS:
        raise ExportError(f"--to {to}: give one of {', '.join(FORMATS)}")
    if dest is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(dest)):
        raise ExportError(f"{dest}: exports are written to this machine; name a local path")
    if not run.planned:
        raise ExportError(f"run {run.run_id} has no items yet; resume it first")
    if options.shard_bytes < 1:
        raise ExportError(f"--shard-bytes {options.shard_bytes}: give at least 1")
    progress = run.progress()
    done = Exported(to, "beside the images" if dest is None else str(dest))
    done.items_without_rows = progress.items - progress.items_done
    if to == "txt":
        txt.write(run, dest, options, done)
    elif dest is None:
        raise ExportError(f"name the place to write to: zellige export RUN DEST --to {to}")
    else:
        FORMATS[to](run, dest, options, done)
    return done
