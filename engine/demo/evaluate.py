"""Asks an engine the held-out suites and compares what it says with what was drawn.

    python -m zellige.engine.demo.evaluate [--samples 500] [--suite NAME ...] [--model DIR] [--out FILE]

Right means equal, character by character. A case is drawn from its suite's name and its number alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zellige.data.samples.fonts import find_faces
from zellige.engine.api import Engine, ModelIdentity, Sampling, ask
from zellige.engine.connect import EngineSpec, open_engine
from zellige.engine.demo.suites import SUITES, Case, Score, Suite, score

_IN_FLIGHT = 32
#: More tokens than any right answer has: what runs on is wrong and ends here.
_MOST_TOKENS = 256


async def answers(engine: Engine, cases: Sequence[Case]) -> list[str]:
    """What the engine says to each case, greedily."""
    free = asyncio.Semaphore(_IN_FLIGHT)

    async def one(case: Case) -> str:
        async with free:
            said = await engine.answer(ask(case.question, case.pixels, sampling=Sampling(max_tokens=_MOST_TOKENS)))
            return said.text

    return await asyncio.gather(*map(one, cases))


async def evaluate(spec: EngineSpec, suites: Sequence[Suite], samples: int) -> tuple[ModelIdentity, list[Score]]:
    """Ask every suite, printing a line for each."""
    engine = open_engine(spec)
    try:
        scores = []
        print(f"{'suite':16} {'samples':>7} {'right %':>8} {'CER %':>7}   target")
        for suite in suites:
            cases = suite.cases(samples)
            found = score(suite, cases, await answers(engine, cases))
            print(_line(found), flush=True)
            scores.append(found)
        return await engine.identity(), scores
    finally:
        await engine.close()


def _line(found: Score) -> str:
    wanted = f"CER <= {found.target:.1%}" if found.by_character else f"right >= {found.target:.0%}"
    figures = f"{100 * found.right:8.1f} {100 * found.character_errors:7.3f}"
    return f"{found.name:16} {found.samples:7} {figures}   {wanted} {'reached' if found.reached else 'MISSED'}"


def report(command: str, identity: ModelIdentity, scores: Sequence[Score]) -> dict[str, Any]:
    """The scores with all that they depend on."""
    return {
        "command": command,
        "model": {"name": identity.name, "fingerprint": identity.fingerprint, "dtype": identity.dtype},
        "seeds": "held-out/<suite>/<number>, numbers from 0 to samples - 1",
        "fonts": {side: sorted({face.family for face in find_faces(side == "unseen")}) for side in ("seen", "unseen")},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("zellige", "torch", "numpy", "pillow", "tokenizers")},
        "suites": [found.record() for found in scores],
    }


def main() -> None:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="cases a suite")
    parser.add_argument("--suite", action="append", choices=names, help="only this one; may be given several times")
    parser.add_argument("--model", help="checkpoint folder (default: the one that ships)")
    parser.add_argument("--out", type=Path, help="JSON file for the scores and the wrong answers")
    options = parser.parse_args()
    suites = [suite for suite in SUITES if not options.suite or suite.name in options.suite]
    identity, scores = asyncio.run(evaluate(EngineSpec(options.model), suites, options.samples))
    if options.out:
        command = f"python -m zellige.engine.demo.evaluate --samples {options.samples}"
        command += "".join(f" --suite {shlex.quote(suite.name)}" for suite in suites if options.suite)
        options.out.write_text(json.dumps(report(command, identity, scores), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
