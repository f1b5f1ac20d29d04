"""The store: runs as folders of files. The files are the truth; whoever is killed loses at most the shards in hand.

STORE/runs/<run_id>/recipe.json    what was asked, of which model, over which inputs
                    items.parquet  every item, before the first is answered
                    leases/        who is at work, on which shard      events/  what happened
                    parts/         answer rows, one file a shard       aside/   parts that were no good
                    health/        throughput samples                  outcome.json  how the last worker ended
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zellige.data.files import LedgerError, StoreUnusable, read_json, usable, write_json
from zellige.data.migrations import migrated
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
#: Ends of the names of hidden folders: of a run that is being deleted, or created, which takes a moment.
_DELETED, _CREATED = ".deleted", ".tmp"
_CREATED_WITHIN_S = 3600.0
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
    """A folder of runs. Nothing is written before the first run is created."""

    def __init__(self, root: str | Path) -> None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(root)):
            raise StoreUnusable(f"{root}: a store is a local folder; name one")
        try:
            os.fsencode(root).decode("utf-8")
        except UnicodeError as error:
            raise StoreUnusable(f"{root!r}: the store's own path must be valid UTF-8; choose another folder") from error
        self.root = Path(root).absolute()

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
        folder = self._runs / name
        made = self._runs / f".{name}.{secrets.token_hex(4)}{_CREATED}"
        with usable(folder, "create"):
            for part in _FOLDERS:
                (made / part).mkdir(parents=True)
        try:
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
            write_json(made / "recipe.json", about)
            with usable(folder, "create"):
                try:
                    made.rename(folder)  # a run is seen with its recipe or not at all
                except OSError:
                    if folder.exists():
                        raise RunExists(f"run {name} exists in {self.root}; resume it or choose another name") from None
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
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
        about = read_json(self._runs / run_id / "recipe.json") if _RUN_ID.fullmatch(run_id) else None
        if about is None:
            raise UnknownRun(self._unknown(run_id))
        run = Run(self._runs / run_id, migrated(about))
        if recipe is not None and recipe.fingerprint != run.recipe.fingerprint:
            raise RecipeDiffers(run_id, recipe.differences(run.recipe))
        return run

    def check_writable(self) -> None:
        """Raise StoreUnusable where runs cannot be written; writes nothing itself."""
        with usable(self._runs, "write to"):
            there = next(p for p in (self._runs, *self._runs.parents) if os.path.lexists(p))
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{there} is no folder")
            if os.statvfs(there).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            if not os.access(there, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{there} may not be written")

    def delete_run(self, run_id: str) -> None:
        """Remove a run and all of its files at once; raises UnknownRun, and LedgerError while a worker of it lives.

        A run that cannot be read is removed too.
        """
        folder = self._runs / run_id
        if not _RUN_ID.fullmatch(run_id) or not (folder / "recipe.json").exists():
            raise UnknownRun(self._unknown(run_id))
        living = [worker for worker, alive in Roster(folder / "leases").workers() if alive]
        if living:
            at = ", ".join(f"process {w.pid} on {w.host.partition('/')[0]}" for w in living)
            raise LedgerError(f"run {run_id} is being worked on by {at}; stop it first, then delete the run")
        aside = self._runs / f".{run_id}.{secrets.token_hex(4)}{_DELETED}"
        with usable(folder, "delete"):
            folder.rename(aside)
            with suppress(FileNotFoundError):  # another command swept a part of it away meanwhile
                shutil.rmtree(aside)
        self.sweep()

    def sweep(self) -> None:
        """Remove the rest of runs whose deletion, or creation, was killed; what cannot be removed is left for later."""
        for rest in [*self._runs.glob(f".*{_DELETED}"), *self._runs.glob(f".*{_CREATED}")]:
            with suppress(FileNotFoundError):
                if rest.name.endswith(_DELETED) or time.time() - rest.stat().st_mtime > _CREATED_WITHIN_S:
                    shutil.rmtree(rest, ignore_errors=True)

    def run_ids(self) -> list[str]:
        """The names of all runs, sorted: those that were not chosen begin with their time."""
        with usable(self._runs, "list"):
            if not self._runs.is_dir():
                return []
            return sorted(
                p.name for p in self._runs.iterdir() if not p.name.startswith(".") and (p / "recipe.json").exists()
            )

    def open_all(self) -> tuple[list[Run], dict[str, str]]:
        """(runs, what is wrong with those that cannot be opened, by name): one that is damaged hides no other."""
        runs, damaged = [], {}
        for run_id in self.run_ids():
            try:
                runs.append(self.open_run(run_id))
            except LedgerError as error:
                damaged[run_id] = str(error)
        return runs, damaged

    @property
    def _runs(self) -> Path:
        return self.root / "runs"

    def _unknown(self, run_id: str) -> str:
        known = self.run_ids()
        if not known:
            return f"no run {run_id!r}: there are no runs in {self.root}"
        near = (
            difflib.get_close_matches(run_id, known, n=3, cutoff=0.5)
            or [k for k in known if run_id and run_id in k][:3]
        )
        hint = f"did you mean {' or '.join(near)}?" if near else f"the latest is {known[-1]}"
        return f"no run {run_id!r} in {self.root}; {hint}"
