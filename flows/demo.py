"""``make demo``: draw images, caption and question them with the checkpoint that ships, check every answer.

python -m zellige.flows.demo [FOLDER]        FOLDER/images and FOLDER/store are made anew (default: demo)
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zellige.data.catalog import Catalog
from zellige.data.samples.demo_set import DOCUMENT_QUESTIONS, LARGE_SCENE, DemoSet, draw_demo_set
from zellige.data.uri import from_uri
from zellige.flows.pipeline import run_job
from zellige.flows.show import table
from zellige.tasks.job import Flow, Job

#: The model that ships is small; these are the shares of right answers below which something is broken.
ENOUGH_CAPTIONS, ENOUGH_ANSWERS, ENOUGH_OF_THE_POSTER = 0.9, 0.9, 0.8


@dataclass
class Score:
    """How many answers of one kind are right, of which a share of ``enough`` must be."""

    what: str
    enough: float
    right: int = 0
    asked: int = 0

    def count(self, name: str, question: str, want: str, got: object) -> None:
        self.asked += 1
        if got == want:
            self.right += 1
        else:
            print(f"  {name}: {question}\n    expected {want}\n    got      {got}")

    @property
    def passes(self) -> bool:
        return self.asked > 0 and self.right >= self.enough * self.asked

    def line(self) -> str:
        short = "" if self.passes else f", at least {self.enough:.0%} are expected"
        return f"{self.what:18} {self.right} of {self.asked} right{short}"


class Demo:
    """One folder of drawn images and one store of answers."""

    def __init__(self, folder: Path) -> None:
        self.images, self.store = folder / "images", folder / "store"
        for old in (self.images, self.store):
            shutil.rmtree(old, ignore_errors=True)
        self.drawn: DemoSet = draw_demo_set(self.images)

    def run(self, task: Flow, name: str, questions: tuple[str, ...] = (), tile: str | None = None) -> str:
        """One run over a part of the images; its id."""
        job = Job(
            task=task,
            store=str(self.store),
            inputs=(str(self.images / name),),
            questions=questions,
            tile=tile,
        )
        begin = time.perf_counter()
        summary = run_job(job)
        print(
            f"{task} {name}: {summary['rows']} rows, {summary['failed']} failed, {time.perf_counter() - begin:.1f} s "
            f"({summary['throughput']['items_per_s']:.1f} items/s)"
        )
        return str(summary["run_id"])

    def rows(self, run_id: str) -> dict[tuple[str, str | None], Mapping[str, object]]:
        """The rows of a run by file name below the images and question."""
        found = Catalog(self.store).query(
            "SELECT uri, question, status, error_kind, answer, len(tiles) AS tiles FROM answers WHERE run_id = ?",
            [run_id],
        )
        root = str(self.images.resolve())
        return {(os.fsdecode(from_uri(r["uri"])).removeprefix(f"{root}/"), r["question"]): r for r in found}

    def check(self) -> bool:
        """Caption and ask everything; print the score; whether all is as it should be."""
        print(f"{len(self.drawn.broken)} broken files, as expected:", flush=True)
        scenes = self.rows(self.run("caption", "scenes"))
        whole = self.rows(self.run("caption", LARGE_SCENE, tile="off"))
        documents = self.rows(self.run("ask", "documents", tuple(DOCUMENT_QUESTIONS.values())))
        poster = self.rows(self.run("ask", "poster", tuple(self.drawn.poster)))
        print()

        captions = Score("captions", ENOUGH_CAPTIONS)
        answers = Score("document answers", ENOUGH_ANSWERS)
        found = Score("poster answers", ENOUGH_OF_THE_POSTER)
        by_name = {name: row for (name, _), row in scenes.items()}
        for name, caption in self.drawn.captions.items():
            captions.count(name, "caption", caption, by_name[name]["answer"])
        for name, wanted in self.drawn.answers.items():
            for question, answer in wanted.items():
                answers.count(name, question, answer, documents[name, question]["answer"])
        for question, answer in self.drawn.poster.items():
            found.count("poster", question, answer, poster["poster/poster.png", question]["answer"])
        told = sum(by_name[name]["error_kind"] == kind for name, kind in self.drawn.broken.items())
        (large,) = whole.values()
        both = large["answer"] == by_name[LARGE_SCENE]["answer"] == self.drawn.captions[LARGE_SCENE]
        tiled = bool(by_name[LARGE_SCENE]["tiles"]) and not large["tiles"]

        scores = (captions, answers, found)
        print("\n".join(score.line() for score in scores))
        print(f"{'broken files':18} {told} of {len(self.drawn.broken)} told by kind")
        print(f"{'1554 x 1078 scene':18} {'right whole and in tiles' if both and tiled else 'WRONG'}")
        return all(score.passes for score in scores) and both and tiled and told == len(self.drawn.broken)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo")
    begin = time.perf_counter()
    demo = Demo(folder)
    print(f"drew {demo.drawn.files} files into {demo.images}, {len(demo.drawn.broken)} of them broken on purpose\n")
    passed = demo.check()
    print()
    runs = Catalog(demo.store).runs()
    print("\n".join(table(runs, ("run_id", "flow", "state", "items", "ok", "failed", "started_at"))))
    print(f"\nrows: {demo.store}/runs/*/parts/*.parquet")
    print(f"ask them: zellige runs list --store {demo.store}, or any DuckDB, polars or pandas")
    print(f"{'all is as it should be' if passed else 'SOMETHING IS WRONG'}, {time.perf_counter() - begin:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
