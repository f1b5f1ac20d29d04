"""Random trees of files, kept in step with a model of their rows through faults, kills, cut parts and retries."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from PIL import Image

from zellige.data.catalog import Catalog
from zellige.data.decode import DecodeError, decode
from zellige.data.ledger import Lease, Run, Store, StoreUnusable
from zellige.data.schema import AnswerRow, ErrorKind, Item, Question, Recipe
from zellige.data.sources import ReadError, Source, open_source

LONG = os.environ.get("ZELLIGE_TEST_LONG") == "1"
RECIPE = Recipe("ask", (Question("a", "?"), Question("b", "?")), "", "off", {}, {}, "m", "f", "d")
#: Names that a careless store would take for one another, and names that it could not write.
NAMES = ("a.png", "A.png", "a.PNG", "e\u0301.png", "\u00e9.png", "a b.png", "a%20b.png", "x/a.png", "X/a.png")
BYTE_NAMES = (b"\xff.png", b"new\nline.png")


def image(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (number % 256, 7, 9)).save(file, "PNG")
    return file.getvalue()


#: What a file holds -> how it fails, None where it does not. A picture's own bytes differ by ``number``.
CONTENTS = {
    "good": (image, None),
    "empty": (lambda _: b"", ErrorKind.EMPTY),
    "garbage": (lambda n: b"no picture %d" % n, ErrorKind.UNSUPPORTED_FORMAT),
    "cut": (lambda n: image(n)[:40], ErrorKind.TRUNCATED),
}
Content = tuple[str, int]
contents = st.tuples(st.sampled_from(sorted(CONTENTS)), st.integers(0, 255))
trees = st.dictionaries(st.sampled_from([*map(str.encode, NAMES), *BYTE_NAMES]), contents, max_size=8)
archives = st.lists(st.tuples(st.sampled_from(NAMES[:7]), contents), max_size=5)


def bytes_of(content: Content) -> bytes:
    return CONTENTS[content[0]][0](content[1])


def kind_of(content: Content) -> ErrorKind | None:
    return CONTENTS[content[0]][1]


def zip_of(members: Sequence[tuple[str, Content]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that are there twice, as is meant here
        for name, content in members:
            archive.writestr(name, bytes_of(content))
    return file.getvalue()


def tar_of(members: Sequence[tuple[str, Content]]) -> tuple[bytes, list[int]]:
    """The archive, and where the bytes of each member end."""
    file, ends = io.BytesIO(), []
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(data := bytes_of(content))
            archive.addfile(info, io.BytesIO(data))
            ends.append(archive.offset)
    return file.getvalue(), ends


def outcome_of(source: Source, item: Item) -> ErrorKind | None:
    """How an item fails by itself, as a worker would find out."""
    if item.error_kind is not None:
        return item.error_kind
    try:
        decode(source.read(item))
    except (ReadError, DecodeError) as error:
        return error.kind
    return None


class StoreMachine(RuleBasedStateMachine):
    """``expected`` are the rows there have to be at the end: how each item fails, by (address, member, place)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.patch = mock.patch("zellige.data.files.os.fsync")
        self.patch.start()
        self.store = Store(self.base / "store")
        self.generation = 0

    @initialize(tree=trees, zipped=archives, tarred=archives, cut=st.integers(0, 3), shard_items=st.integers(1, 4))
    def plan(
        self,
        tree: dict[bytes, Content],
        zipped: list[tuple[str, Content]],
        tarred: list[tuple[str, Content]],
        cut: int,
        shard_items: int,
    ) -> None:
        top = self.base / "images"
        top.mkdir()
        expected: list[ErrorKind | None] = []
        for name, content in tree.items():
            path = top / os.fsdecode(name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes_of(content))
            expected.append(kind_of(content))
        (top / "z.zip").write_bytes(zip_of(zipped))
        expected += [kind_of(content) for _, content in zipped] or [ErrorKind.EMPTY]
        data, ends = tar_of(tarred)
        if cut and tarred:  # inside the header of the last member: those before it are there, and one row tells of it
            (top / "t.tar").write_bytes(data[: (ends[-2] if len(ends) > 1 else 0) + 100 * cut])
            expected += [*(kind_of(content) for _, content in tarred[:-1]), ErrorKind.TRUNCATED]
        else:
            (top / "t.tar").write_bytes(data)
            expected += [kind_of(content) for _, content in tarred] or [ErrorKind.EMPTY]
        self.source = open_source([top])
        run = self.store.create_run(
            RECIPE, self.source.items(), shard_items=shard_items, inputs=self.source.inputs, run_id="r"
        )
        run.close()
        items = list(run.items())
        self.natural = {item.item_id: outcome_of(self.source, item) for item in items}
        assert sorted(map(str, self.natural.values())) == sorted(map(str, expected))
        self.outcomes = dict(self.natural)
        self.items, self.shards = items, run.shard_count

    # --- what workers do

    def open(self) -> Run:
        return self.store.open_run("r", RECIPE)

    def rows(self, lease: Lease) -> list[AnswerRow]:
        """Every commit answers otherwise, so that a row that should have stayed is seen to have changed."""
        self.generation += 1
        return [self.row(item, question) for item in lease.shard.items for question in RECIPE.questions]

    def row(self, item: Item, question: Question) -> AnswerRow:
        kind = self.outcomes[item.item_id]
        if kind is not None:
            return AnswerRow.of("r", RECIPE, item, question, "failed", error_kind=kind, error=str(self.generation))
        return AnswerRow.of("r", RECIPE, item, question, "ok", answer=str(self.generation))

    @rule(shards=st.integers(1, 5))
    def work(self, shards: int) -> None:
        run = self.open()
        for _ in range(shards):
            if (lease := run.lease()) is not None:
                with lease:
                    assert lease.commit(self.rows(lease))
        run.close()

    @rule(index=st.integers(0, 9))
    def die_with_a_lease(self, index: int) -> None:
        """SIGKILL: the claim stays, and so does the worker's file, with the number of a process that is no more."""
        run = self.open()
        if run.lease(index % self.shards) is None:
            run.close()
            return
        me = next(w for w, _ in run._roster.workers() if w.name == run._roster.my_name)
        path = run._roster.folder.at(f"worker-{me.name}.json")
        left = path.read_text().replace(f'"pid": {me.pid}', '"pid": 4194305')
        run.close()
        path.write_text(left)
        assert not any(living for _, living in run._roster.workers())

    @rule()
    def raise_while_answering(self) -> None:
        run = self.open()
        lease = run.lease()
        if lease is not None:
            with pytest.raises(ZeroDivisionError), lease:
                _ = 1 // 0
            run.finish("failed", "ZeroDivisionError")
        run.close()

    @rule()
    def commit_too_few_rows(self) -> None:
        run = self.open()
        if (lease := run.lease()) is not None:
            with lease, pytest.raises(ValueError, match="missing"):
                lease.commit(self.rows(lease)[:-1])
        run.close()

    # --- what happens to the files

    @rule(index=st.integers(0, 9))
    def cut_a_part(self, index: int) -> None:
        part = self.open().part_path(index % self.shards)
        if part.exists() and part.stat().st_size > 20:
            part.write_bytes(part.read_bytes()[:-20])

    @rule(index=st.integers(0, 9))
    def cut_a_part_in_the_hand_of_a_retry(self, index: int) -> None:
        """What a retry would have kept is gone: it says so, and the shard is answered whole by the next worker."""
        run = self.open()
        lease = run.lease(index % self.shards)
        if lease is not None:
            with lease:
                part = run.part_path(index)
                if part.exists():
                    part.write_bytes(part.read_bytes()[:-20])
                    with pytest.raises(StoreUnusable, match="damaged"):
                        lease.commit(self.rows(lease))
        run.close()

    @rule(keep=st.sampled_from([None, 0, 5000]))
    def damage_the_index(self, keep: int | None) -> None:
        index = Catalog(self.store.root).path
        if keep is None:
            index.unlink(missing_ok=True)
        elif index.exists():
            index.write_bytes(index.read_bytes()[:keep])

    @rule()
    def record(self) -> None:
        run = self.open()
        assert Catalog(self.store.root).record(run)
        run.close()

    @rule(kinds=st.sets(st.sampled_from([ErrorKind.EMPTY, ErrorKind.TRUNCATED, ErrorKind.ENGINE_FAILED]), min_size=1))
    def begin_a_retry_and_leave(self, kinds: set[ErrorKind]) -> None:
        run = self.open()
        run.retry(kinds)
        run.close()

    @precondition(lambda self: self.items)
    @rule(data=st.data(), heal=st.booleans())
    def fault_comes_or_goes(self, data: st.DataObject, heal: bool) -> None:
        """An item fails by the engine from now on, or no more; what is answered already stays until it is retried."""
        item = data.draw(st.sampled_from(self.items))
        if self.natural[item.item_id] is None:
            self.outcomes[item.item_id] = None if heal else ErrorKind.ENGINE_FAILED

    # --- what has to hold

    @invariant()
    def no_row_is_there_twice(self) -> None:
        if not hasattr(self, "items"):
            return
        run = self.open()
        rows = [row for index in run.whole_shards() for row in read(run.part_path(index), ["row_id"])]
        assert len({row["row_id"] for row in rows}) == len(rows)
        progress = run.progress()
        assert progress.ok + progress.failed == len(rows) <= progress.rows == len(self.items) * 2

    def teardown(self) -> None:
        try:
            if hasattr(self, "items"):
                self.finish()
        finally:
            self.patch.stop()
            shutil.rmtree(self.base)

    def finish(self) -> None:
        """Resume to the end, then answer again all that failed."""
        run = self.open()
        self.answer_all(run)
        run.retry(frozenset(ErrorKind))
        kept = {r["row_id"]: r["answer"] for r in self.stored(run) if r["status"] == "ok"}
        self.answer_all(run)
        assert run.finish("finished") == "finished"
        rows = self.stored(run)
        assert len({row["row_id"] for row in rows}) == len(rows) == len(self.items) * len(RECIPE.questions)
        assert [row["item_id"] for row in rows] == [i.item_id for i in self.items for _ in RECIPE.questions]
        assert kept.items() <= {row["row_id"]: row["answer"] for row in rows}.items()
        for row in rows:
            outcome = self.outcomes[row["item_id"]]
            if row["status"] == "failed":
                assert row["error_kind"] == outcome
            else:  # a fault that came after an answer leaves the answer
                assert outcome in (None, ErrorKind.ENGINE_FAILED)
        assert run.bad_parts() == sorted((run.path / "aside").glob("*.parquet"))
        catalog = Catalog(self.store.root)
        assert catalog.record(run)
        (known,) = catalog.runs()
        assert (known["state"], known["rows"]) == ("finished", len(rows))
        counted = catalog.query("SELECT count(*) AS n, count(DISTINCT row_id) AS ids FROM answers")
        assert counted == [{"n": len(rows), "ids": len(rows)}]

    def answer_all(self, run: Run) -> None:
        while (lease := run.lease()) is not None:
            with lease:
                assert lease.commit(self.rows(lease))
        assert len(run.done_shards()) == self.shards

    def stored(self, run: Run) -> list[dict[str, object]]:
        return [row for index in range(self.shards) for row in read(run.part_path(index))]


def read(part: Path, columns: Iterable[str] | None = None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(part, columns=None if columns is None else list(columns)).to_pylist()
    return rows


TestStore = pytest.mark.long(StoreMachine.TestCase)
TestStore.settings = settings(
    max_examples=400 if LONG else 12,
    stateful_step_count=40 if LONG else 15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
