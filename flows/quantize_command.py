"""``zellige quantize``: what is told of it, and its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zellige.engine.api import EngineError
from zellige.flows.output import put


def quantize_command(work: Callable[[Callable[[str], None]], dict[str, Any]], to: Path, as_json: bool) -> int:
    """Run ``work``, which is given where to tell how far it is; 0 when the folder is there, 2 when it cannot be."""
    try:
        report = work(lambda text: put(text, sys.stderr))
    except EngineError as error:
        put(f"zellige: {error}", sys.stderr)
        if as_json:
            put(json.dumps({"error": str(error), "exit_code": 2}), sys.stdout)
        return 2
    if as_json:
        put(json.dumps({"model": str(to), **report, "exit_code": 0}), sys.stdout)
    else:
        put("\n".join(_lines(report, to)), sys.stdout)
    return 0


def _lines(report: dict[str, Any], to: Path) -> list[str]:
    share = report["bytes"] / report["bytes_before"]
    lines = [f"{to}: {report['bytes'] / 1e6:.1f} MB, {share:.0%} of before; {report['layout']} layout"]
    lines.append(f"{report['matrices']} matrices rounded, {report['compensated']} of them with compensation")
    if quality := report.get("quality"):
        lines.append(f"on {quality['samples']} held-out samples, against the unquantised checkpoint in float32:")
        lines.append(f"{'':12} {'same token':>11} {'KL, nats':>10} {'perplexity':>11}")
        for name, title in (("quantized", "quantised"), ("noise_floor", "in bfloat16")):
            row = quality[name]
            lines.append(f"{title:12} {row['agreement']:>10.2%}  {row['kl']:>10.2e} {row['perplexity_ratio']:>10.4f}×")
    return lines
