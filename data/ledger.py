"""The store: runs as folders of files. The files are the truth; whoever is killed loses at most the shards in hand.

STORE/runs/<run_id>/recipe.json    what was asked, of which model, over which inputs
                    items.parquet  every item, before the first is answered
                    leases/        who is at work, on which shard      events/  what happened
                    parts/         answer rows, one file a shard       aside/   parts that were no good
                    health/        throughput samples                  outcome.json  how the last worker ended
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zellige.data.files import LedgerError, StoreUnusable, usable
from zellige.data.folder import Folder, LocalFolder, as_json, read_json
from zellige.data.migrations import migrated
from zellige.data.objects import ObjectFolder, cache_of
from zellige.data.run import Lease, Progress, Run, RunState, Shard
from zellige.data.schema import SCHEMA_VERSION, Item, Recipe
from zellige.data.sources.base import SourceError
from zellige.data.workers import Roster

__all__ = [
    "Lease",
    "LedgerError",
    "Progress",
    "RecipeDiffers",
    "Run",
    "RunExists",
    "RunState",
    "Shard",
    "Store",
    "StoreUnusable",
    "UnknownRun",
]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RECIPE = "recipe.json"
_FOLDERS = ("leases", "events", "parts", "health")


class UnknownRun(LedgerError):
    """The store holds no run of that name."""


class RunExists(LedgerError):
    """A run of that name is there already."""


class RecipeDiffers(LedgerError):
    """The run was made with another recipe; ``differences`` lists them, one line a setting."""

    def __init__(self, run_id: str, differences: list[str]) -> None:
        lines = "".join(f"\n  {line}" for line in differences)
        super().__init__(
            f"run {run_id} was started with another recipe, and two recipes never mix in one run (asked now != stored):"
            f"{lines}\nResume it with the settings it was started with, or start a new run."
        )
        self.differences = differences


class Store:
    """A folder of runs, here or on an object store. Nothing is written before the first run is created."""

    def __init__(self, root: str | Path) -> None:
        """``root``: a path, or an address of anything that fsspec writes; ``root`` and ``address`` as attributes are
        where the index and files are on this machine, and the whole address.
        """
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(root)):
            self.address = str(root).rstrip("/")
            self.root, self.is_local = cache_of(self.address), False
            self._runs: Folder = ObjectFolder(self.address, self.root) / "runs"
            return
        try:
            os.fsencode(root).decode("utf-8")
        except UnicodeError as error:
            raise StoreUnusable(f"{root!r}: the store's own path must be valid UTF-8; choose another folder") from error
        self.root, self.is_local = Path(root).absolute(), True
        self.address, self._runs = str(self.root), LocalFolder(self.root / "runs")

    @property
    def is_there(self) -> bool:
        """Whether there is a folder for runs; of a store elsewhere only asking for them tells."""
        return not self.is_local or self.root.is_dir()

    def create_run(
        self,
        recipe: Recipe,
        items: Iterable[Item],
        *,
        shard_items: int,
        inputs: Sequence[str],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        column: str | None = None,
        keep: Sequence[str] = (),
        limit: int | None = None,
        run_id: str | None = None,
        noted: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Run:
        """A new run with its ``items`` stored (streamed). Killed meanwhile, it can be opened and planned again.

        ``inputs`` are the source's own (``Source.inputs``: absolute URIs), so that planning works from any folder.
        ``noted`` are events, fields by kind, that are written before the first item is listed. Raises RunExists,
        StoreUnusable, ValueError for a ``run_id`` that is no plain name, and what listing raises: a
        SourceError leaves no run.
        """
        if shard_items < 1:
            raise ValueError(f"shard_items is {shard_items}; give at least 1")
        now = datetime.now(UTC)
        name = run_id or f"{now:%Y%m%d-%H%M%S}-{recipe.task}-{secrets.token_hex(2)}"
        if not _RUN_ID.fullmatch(name):
            raise ValueError(
                f"run id {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
            )
        about = {
            "schema_version": SCHEMA_VERSION,
            "run_id": name,
            "started_at": now.isoformat(),
            "shard_items": shard_items,
            "inputs": list(inputs),
            "include": list(include),
            "exclude": list(exclude),
            "column": column,
            "keep": list(keep),
            "limit": limit,
            "recipe_fingerprint": recipe.fingerprint,
            "recipe": json.loads(recipe.to_json()),
        }
        with usable(self._runs.at(name), "create"):
            if not self._runs.begin(name, _RECIPE, as_json(about), _FOLDERS):
                raise RunExists(f"run {name} exists in {self.address}; resume it or choose another name")
        run = self.open_run(name)
        for kind, fields in (noted or {}).items():
            run.event(kind, **fields)
        try:
            run.plan(items)
        except SourceError:  # wrong use, found on the way: planning it again would end the same way
            run.close()
            self.delete_run(name)
            raise
        return run

    def open_run(self, run_id: str, recipe: Recipe | None = None) -> Run:
        """The run as it is; raises UnknownRun and, where ``recipe`` is given and is another one, RecipeDiffers."""
        about = read_json(self._runs / run_id, _RECIPE) if _RUN_ID.fullmatch(run_id) else None
        if about is None:
            raise UnknownRun(self._unknown(run_id))
        run = Run(self._runs / run_id, self.address, migrated(about))
        if recipe is not None and recipe.fingerprint != run.recipe.fingerprint:
            raise RecipeDiffers(run_id, recipe.differences(run.recipe))
        return run

    def check_writable(self) -> None:
        """Raise StoreUnusable where runs cannot be written; leaves nothing behind."""
        self._runs.check_writable()

    def delete_run(self, run_id: str) -> None:
        """Remove a run and all of its files at once; raises UnknownRun, and LedgerError while a worker of it lives.

        A run that cannot be read is removed too.
        """
        folder = self._runs / run_id
        if not _RUN_ID.fullmatch(run_id) or not folder.has(_RECIPE):
            raise UnknownRun(self._unknown(run_id))
        living = [worker for worker, alive in Roster(folder / "leases").workers() if alive]
        if living:
            at = ", ".join(f"process {w.pid} on {w.host.partition('/')[0]}" for w in living)
            raise LedgerError(f"run {run_id} is being worked on by {at}; stop it first, then delete the run")
        with usable(folder, "delete"):
            self._runs.delete(run_id, _RECIPE)
        self.sweep()

    def sweep(self) -> None:
        """Remove the rest of runs whose deletion, or creation, was killed; what cannot be removed is left for later."""
        self._runs.sweep(_RECIPE)

    def run_ids(self) -> list[str]:
        """The names of all runs, sorted: those that were not chosen begin with their time."""
        with usable(self._runs, "list"):
            return self._runs.having(_RECIPE)

    def open_all(self) -> tuple[list[Run], dict[str, str]]:
        """(runs, what is wrong with those that cannot be opened, by name): one that is damaged hides no other."""
        runs, damaged = [], {}
        for run_id in self.run_ids():
            try:
                runs.append(self.open_run(run_id))
            except LedgerError as error:
                damaged[run_id] = str(error)
        return runs, damaged

    def _unknown(self, run_id: str) -> str:
        known = self.run_ids()
        if not known:
            return f"no run {run_id!r}: there are no runs in {self.address}"
        near = (
            difflib.get_close_matches(run_id, known, n=3, cutoff=0.5)
            or [k for k in known if run_id and run_id in k][:3]
        )
        hint = f"did you mean {' or '.join(near)}?" if near else f"the latest is {known[-1]}"
        return f"no run {run_id!r} in {self.address}; {hint}"
