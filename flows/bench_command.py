"""``zellige bench``: the measures and how they are told; each gives back its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zellige.flows.bench_pipeline import BenchError, append, as_lines, measure
from zellige.flows.output import put


def bench_pipeline(items: int, out: Path | None, as_json: bool) -> int:
    """Measure and tell; 0 whether or not the targets are met, 1 where a measure could not be made."""
    rows = []
    try:
        for row in measure(items, lambda text: put(f"measuring {text}", sys.stderr)):
            rows.append(row)
            if not as_json:
                put("\n".join(as_lines(row)), sys.stdout)
            if out is not None:
                append(out, row)
    except (BenchError, OSError) as error:
        put(f"zellige: {error}", sys.stderr)
        if as_json:
            put(json.dumps({"error": str(error), "rows": rows, "exit_code": 1}), sys.stdout)
        return 1
    if as_json:
        put(json.dumps({"bench": "pipeline", "rows": rows, "exit_code": 0}), sys.stdout)
    return 0
