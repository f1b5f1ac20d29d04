"""Report: what a page about a run says, from the run's files; and the page itself."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from zellige.data.files import usable, write_whole
from zellige.data.report.page import MARK, Page
from zellige.data.report.rows import Chosen, choose
from zellige.data.report.series import series
from zellige.data.reviews import reviews_of
from zellige.data.run import Run
from zellige.data.sources import SourceError
from zellige.data.thumbnail import as_data_uri
from zellige.tasks.environment import ENVIRONMENT_EVENT
from zellige.tasks.job import WrongUseError
from zellige.tasks.pictures import Pictures, Wanted
from zellige.tasks.record import summary

#: Rows of one page, and pictures of items that did not fail.
MOST_ROWS, MOST_SAMPLED = 10_000, 500
#: The longer side of a picture in pixels, and of one where there are few items.
SIDE, LARGE_SIDE, FEW_ITEMS = 320, 560, 150
#: Items of which the page says why there is no picture, and the words of each.
MOST_REASONS, MOST_REASON_CHARS = 2000, 200


def about_run(run: Run) -> dict[str, Any]:
    """The run's summary, charts, recipe and environments, in plain values."""
    environments: list[dict[str, Any]] = []
    for event in run.events():
        if event["kind"] == ENVIRONMENT_EVENT:
            one = {name: value for name, value in event.items() if name not in ("at", "worker", "kind")}
            environments += [] if one in environments else [one]
    return {
        "run": summary(run),
        "series": series(run),
        "recipe": json.loads(run.recipe.to_json()) | {"fingerprint": run.recipe.fingerprint},
        "environments": environments,
    }


def verdicts(run: Run, chosen: Chosen) -> dict[str, dict[str, Any]]:
    """The words that stand on the page's rows, by row: ``verdict``, and ``answer`` where it was edited."""
    at = {row["id"]: row["at"] for row in chosen.rows}
    return {
        row: {"verdict": review.verdict, "answer": review.answer}
        for row, review in reviews_of(run).items()
        if at.get(row) == review.row_created_at.isoformat()
    }


def wanted_pictures(chosen: Chosen, most_sampled: int) -> list[Wanted]:
    """Items of failed rows first, then others evenly spread, as they are to be drawn."""
    shas: dict[int, str | None] = {}
    failed: set[int] = set()
    for row in chosen.rows:
        shas.setdefault(row["item"], row.get("content_sha256"))
        if row["status"] == "failed":
            failed.add(row["item"])
    others = [place for place in shas if place not in failed]
    step = max(1, -(-len(others) // most_sampled))
    return [Wanted(place, chosen.items[place], shas[place]) for place in (*sorted(failed), *others[::step])]


def write_report(run: Run, dest: Path) -> dict[str, Any]:
    """Write the page of a run to ``dest``, whole or not at all; its figures. Raises WrongUseError, StoreUnusable."""
    _may_be_written(dest)
    chosen = choose(run, MOST_ROWS)
    about, reviewed = about_run(run), verdicts(run, chosen)
    page = Page(about, chosen, reviewed)
    drawn, why = _drawn(run, chosen, page.picture_room - MOST_REASONS * MOST_REASON_CHARS)
    reasons = {place: reason[:MOST_REASON_CHARS] for place, reason in islice(why.items(), MOST_REASONS)}
    html = page.html({place: as_data_uri(jpeg) for place, jpeg in drawn.items()}, reasons)
    write_whole(dest, lambda file: file.write(html))
    return {
        "run_id": run.run_id,
        "file": str(dest),
        "bytes": len(html),
        "rows": len(chosen.rows),
        "rows_in_all": chosen.total,
        "pictures": len(drawn),
        "not_drawn": len(why),
    }


def _drawn(run: Run, chosen: Chosen, room: int) -> tuple[dict[int, bytes], dict[int, str]]:
    wanted = wanted_pictures(chosen, MOST_SAMPLED)
    if not wanted:
        return {}, {}
    try:
        with Pictures(run) as pictures:
            return pictures.draw_all(wanted, LARGE_SIDE if len(wanted) <= FEW_ITEMS else SIDE, room)
    except SourceError as error:
        return {}, dict.fromkeys((one.key for one in wanted), f"the inputs cannot be opened any more: {error}")


def _may_be_written(dest: Path) -> None:
    """Raises WrongUseError where something is at ``dest`` that is no report."""
    if dest.is_dir():
        raise WrongUseError(f"{dest} is a folder; name a file")
    if dest.exists():
        with usable(dest, "read"), dest.open("rb") as file:
            if dest.stat().st_size and file.read(len(MARK)) != MARK:
                raise WrongUseError(f"{dest} is a file that is no report; it is not replaced, name another file")
    with usable(dest.parent, "make"):
        dest.parent.mkdir(parents=True, exist_ok=True)
