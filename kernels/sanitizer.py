"""A command under NVIDIA's ``compute-sanitizer``, and its report told by operator instead of by kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from zellige.kernels.operators import OPERATORS

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: The status that tells errors apart from those of the command itself.
FOUND = 86
_OURS = "zellige.kernels."
#: A line of the report that begins an error; what belongs to it is indented further.
_BEGINS = re.compile(r"^========= (?=\S)")
_NO_ERRORS = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "Target application", "LEAK SUMMARY")
_NAME = re.compile(r"[A-Za-z_]\w*")


class SanitizerMissing(Exception):
    """There is no ``compute-sanitizer`` here; the message says where it comes from."""


@dataclass(frozen=True, slots=True)
class Found:
    """One error and how often it was reported. ``operators`` is empty for a kernel that is not ours."""

    what: str
    where: str
    operators: tuple[str, ...]
    times: int


def sanitize(command: Sequence[str], tool: str) -> tuple[int, list[Found]]:
    """Run ``command`` under ``tool``: its exit status, FOUND where the tool objected, and what it objected to."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise SanitizerMissing("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.txt")
        how = ["--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND), "--log-file", str(report)]
        status = subprocess.run([program, *how, *command], check=False).returncode
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    return status, translated(text, kernel_names())


def translated(report: str, operators: Mapping[str, Sequence[str]]) -> list[Found]:
    """The errors of a report, the most frequent first; ``operators`` by the name of their kernels."""
    times: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for what, block in _errors(report):
        names = [name for name in _NAME.findall(block) if name in operators]
        at = re.search(r"\bat (.*)", block)
        # Of a kernel that is not ours its own name; without the offsets that make equal errors differ.
        where = names[0] if names else re.sub(r"\+?0x[0-9a-f]+\S*", "", at[1] if at else "").strip()
        times[what, where, tuple(operators[names[0]]) if names else ()] += 1
    return [Found(what, where, ops, n) for (what, where, ops), n in times.most_common()]


def _errors(report: str) -> Iterator[tuple[str, str]]:
    """First line and whole text of each error."""
    block: list[str] = []
    for line in [*report.splitlines(), "========= ERROR SUMMARY"]:
        if not _BEGINS.match(line):
            block.append(line)
            continue
        first = _BEGINS.sub("", block[0]) if block and _BEGINS.match(block[0]) else ""
        if first and not first.startswith(_NO_ERRORS):
            yield first, "\n".join(block)
        block = [line]


def kernel_names() -> dict[str, list[str]]:
    """The operators that start a kernel, by its name."""
    found: dict[str, list[str]] = {}
    for op in OPERATORS:
        for module in _modules(op.run.__module__):
            for name, value in vars(module).items():
                if name.endswith("_kernel") and _is_kernel(value) and op.name not in found.setdefault(name, []):
                    found[name].append(op.name)
    return found


def _is_kernel(value: Any) -> bool:
    # Compiled, interpreted or without Triton: each form holds the function itself.
    return type(value).__module__.startswith("triton.") and callable(getattr(value, "fn", None))


def _modules(first: str) -> list[ModuleType]:
    """A module of ours and those that it takes its own functions from, at any depth."""
    names, done = [first], []
    while names:
        module = sys.modules[names.pop()]
        done.append(module)
        for value in vars(module).values():
            home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith(_OURS) and sys.modules[home] not in done:
                names.append(home)
    return done
