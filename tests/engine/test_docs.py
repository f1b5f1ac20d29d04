"""The examples in the documentation run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_example_of_answers_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", (DOCS / "answers.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 1
    done = subprocess.run([sys.executable, "-c", examples[0]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"stop \{'colour': '(red|green|blue)', 'sides': [3-9]\} \d+\n", done.stdout)
