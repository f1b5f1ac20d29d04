"""Tables of images: which column, which rows, and what becomes of damaged ones."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zellige.data.decode import decode
from zellige.data.schema import ErrorKind, Item
from zellige.data.sources import open_source
from zellige.data.sources.base import ReadError, StoredFile
from zellige.data.sources.cells import kept_text
from zellige.data.sources.image_column import image_column
from zellige.data.sources.options import SourceOptions
from zellige.data.sources.storage import local_file
from zellige.data.sources.tables import TableContainer

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
KINDS = ("parquet", "file", "stream")


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (number + 1, 2), "red").save(file, "PNG")
    return file.getvalue()


def write(path: Path, table: pa.Table, kind: str = "parquet", **options: Any) -> Path:
    if kind == "parquet":
        pq.write_table(table, path, **options)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=options.get("row_group_size"))
    return path


def opened(path: Path, column: str | None = None, keep: tuple[str, ...] = ()) -> TableContainer:
    return TableContainer(local_file(os.fsencode(path)), SourceOptions(column=column, keep=keep))


def widths(container: TableContainer) -> list[int]:
    return [decode(container.read(item)).width for item in container.items()]


def why(container: TableContainer, ordinal: int = 0) -> ReadError:
    with pytest.raises(ReadError) as caught:
        container.read(Item("file:///t", ordinal=ordinal))
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"bytes": picture(n), "path": None} for n in range(5)], STRUCT),
        pa.array([picture(n) for n in range(5)], pa.binary()),
        pa.array([picture(n) for n in range(5)], pa.large_binary()),
        pa.array([base64.b64encode(picture(n)).decode() for n in range(5)]),
        pa.array(["data:image/png;base64," + base64.b64encode(picture(n)).decode() for n in range(5)]),
        pa.array([base64.urlsafe_b64encode(picture(n)).decode().rstrip("=") for n in range(5)]),
    ],
)
def test_every_kind_of_column_gives_its_images_in_order(tmp_path, kind, column):
    table = pa.table({"n": range(5), "image": column})
    container = opened(write(tmp_path / "t", table, kind, row_group_size=2))
    items = list(container.items())
    assert [(item.ordinal, item.member, item.page) for item in items] == [(n, None, None) for n in range(5)]
    assert {item.uri for item in items} == {f"file://{tmp_path}/t"}
    assert widths(container) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_in_any_order_and_again_after_closing(tmp_path, kind):
    table = pa.table({"image": pa.array([picture(n) for n in range(40)])})
    path = write(tmp_path / "t", table, kind, row_group_size=7)
    container = opened(path)
    order = np.random.default_rng(0).permutation(40).tolist()
    assert [decode(container.read(Item("file:///t", ordinal=n))).width for n in order] == [n + 1 for n in order]
    container.close()
    assert decode(container.read(Item("file:///t", ordinal=39))).width == 40
    assert why(container, 40).kind == "not_found"


@pytest.mark.parametrize("kind", KINDS)
def test_table_that_lies_elsewhere_is_read_through_its_file(tmp_path, kind):
    path = write(tmp_path / "t", pa.table({"image": [picture(n) for n in range(9)]}), kind, row_group_size=4)
    container = TableContainer(StoredFile("memory:///t", None, None, lambda: path.open("rb")), SourceOptions())
    assert widths(container) == list(range(1, 10))
    assert decode(container.read(Item("memory:///t", ordinal=1))).width == 2


def test_paths_are_relative_to_the_table_and_may_have_any_name(tmp_path):
    (tmp_path / "in ner#").mkdir()
    (tmp_path / "in ner#" / "100%.png").write_bytes(picture(3))
    (tmp_path / "a.png").write_bytes(picture(4))
    names = ["in ner#/100%.png", str(tmp_path / "a.png"), f"file://{tmp_path}/a.png", "gone.png", None, ""]
    container = opened(write(tmp_path / "t.parquet", pa.table({"file_name": names, "text": ["x"] * 6})))
    assert [decode(container.read(Item("", ordinal=n))).width for n in range(3)] == [4, 5, 5]
    assert [why(container, n).kind for n in (3, 4, 5)] == ["not_found", "empty", "empty"]
    assert "gone.png" in why(container, 3).message


def test_struct_without_bytes_follows_its_path_and_null_is_empty(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(4))
    cells = [{"bytes": None, "path": "a.png"}, None, {"bytes": None, "path": None}]
    container = opened(write(tmp_path / "t.parquet", pa.table({"image": pa.array(cells, STRUCT)})))
    assert decode(container.read(Item("", ordinal=0))).width == 5
    assert [why(container, n).kind for n in (1, 2)] == ["empty", "empty"]


def test_pipe_named_by_a_cell_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    container = opened(write(tmp_path / "t.parquet", pa.table({"path": ["a.png"]})))
    assert why(container).kind == "unreadable"


@pytest.mark.parametrize(
    ("columns", "named", "found"),
    [
        ({"image": STRUCT, "mask": STRUCT}, None, "image"),
        ({"photo of it": STRUCT, "url": pa.string()}, None, "photo of it"),
        ({"jpg": pa.binary(), "embedding": pa.binary()}, None, "jpg"),
        ({"URL": pa.string(), "TEXT": pa.string()}, None, "URL"),
        ({"path": pa.string(), "image_path": pa.string()}, None, "image_path"),
        ({"file_name": pa.string(), "coco_url": pa.string()}, "coco_url", "coco_url"),
        ({"sample": pa.struct([("picture", STRUCT), ("n", pa.int64())])}, "sample.picture", "sample.picture"),
        ({"a.b": pa.binary(), "c": pa.binary()}, "a.b", "a.b"),
        ({"path": pa.dictionary(pa.int32(), pa.string())}, None, "path"),
    ],
)
def test_column_is_found_by_type_and_name(columns, named, found):
    assert ".".join(image_column(pa.schema(columns), named).parts) == found


@pytest.mark.parametrize(
    ("columns", "named", "says"),
    [
        ({"left": STRUCT, "right": STRUCT}, None, "cannot be told"),
        ({"jpg": pa.binary(), "png": pa.binary()}, None, "any of jpg, png"),
        ({"payload": pa.binary(), "url": pa.string()}, None, "cannot be told"),
        ({"caption": pa.string(), "n": pa.int64()}, None, "cannot be told"),
        ({"image": STRUCT}, "picture", "no column picture"),
        ({"image": STRUCT, "n": pa.int64()}, "n", "column n holds no images"),
        ({}, None, "none"),
    ],
)
def test_column_that_cannot_be_told_is_never_guessed(columns, named, says):
    with pytest.raises(ReadError, match=says) as caught:
        image_column(pa.schema(columns), named)
    assert all(name in caught.value.message for name in columns)


def test_nested_column_is_read(tmp_path):
    cells = [{"image": picture(2), "more": 1}, None]
    kind = pa.struct([("image", pa.binary()), ("more", pa.int64())])
    container = opened(write(tmp_path / "t.parquet", pa.table({"s": pa.array(cells, kind)})), column="s.image")
    assert decode(container.read(Item("", ordinal=0))).width == 3
    assert why(container, 1).kind == "empty"


@pytest.mark.parametrize("kind", KINDS)
def test_kept_columns_are_text(tmp_path, kind):
    table = pa.table(
        {
            "image": [picture(0), picture(1)],
            "text": ["é\u2028", None],
            "n": [7, 8],
            "ok": [True, None],
            "box": [{"x": 1, "y": [2.5, None]}, None],
            "day": [date(2020, 1, 2), None],
        }
    )
    first, second = opened(write(tmp_path / "t", table, kind), keep=("text", "n", "ok", "box", "box.x", "day")).items()
    assert dict(first.metadata) == {
        "text": "é\u2028",
        "n": "7",
        "ok": "true",
        "box": '{"x": 1, "y": [2.5, null]}',
        "box.x": "1",
        "day": "2020-01-02",
    }
    assert dict(second.metadata) == {"n": "8"}
    assert json.loads(dict(first.metadata)["box"])["y"] == [2.5, None]


def test_kept_text_of_odd_values():
    assert kept_text(b"\xff\xfe") == base64.b64encode(b"\xff\xfe").decode()
    assert kept_text(b"text") == "text"
    assert kept_text([b"a", date(2020, 1, 2)]) == '["a", "2020-01-02"]'


def test_missing_kept_column_is_an_error_that_lists_the_columns(tmp_path):
    container = opened(write(tmp_path / "t.parquet", pa.table({"image": [picture(0)]})), keep=("caption",))
    with pytest.raises(ReadError, match=r"no column caption.*image \(binary\)"):
        list(container.items())


def test_text_that_is_not_utf8_is_kept_and_opens_its_file(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(picture(1))
    raw = pa.array([b"caf\xe9.png"]).view(pa.string())
    container = opened(write(tmp_path / "t", pa.table({"path": raw}), "file"), keep=("path",))
    (item,) = container.items()
    assert dict(item.metadata)["path"] == os.fsdecode(b"caf\xe9.png")
    assert decode(container.read(item)).width == 2


def test_name_of_the_table_may_be_any_bytes(tmp_path):
    for kind in KINDS:
        path = tmp_path / os.fsdecode(b"caf\xe9 #?" + kind.encode())
        assert widths(opened(write_by_handle(path, kind))) == [1]


def write_by_handle(path: Path, kind: str) -> Path:
    plain = write(path.parent / "plain", pa.table({"image": [picture(0)]}), kind)
    path.write_bytes(plain.read_bytes())
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0, 4, 0.3, 0.95, -1])
def test_half_written_table_is_one_error_or_the_rows_before_it(tmp_path, kind, keep):
    whole = write(tmp_path / "w", pa.table({"image": [picture(n) for n in range(50)]}), kind, row_group_size=10)
    data = whole.read_bytes()
    (tmp_path / "t").write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    container = opened(tmp_path / "t")
    found: list[Item] = []
    with pytest.raises(ReadError) as caught:
        found.extend(container.items())
    assert caught.value.kind == ("empty" if keep == 0 else caught.value.kind)
    assert caught.value.kind in {"empty", "truncated", "unreadable"}
    # A stream has nothing behind its rows but the mark of its end.
    assert len(found) == 50 if (kind, keep) == ("stream", -1) else len(found) < 50


def test_stream_that_ends_between_two_batches_says_that_rows_may_be_missing(tmp_path):
    data = write(tmp_path / "t", pa.table({"image": [picture(0)]}), "stream").read_bytes()
    (tmp_path / "t").write_bytes(data[:-8])
    items = opened(tmp_path / "t").items()
    assert next(items).ordinal == 0
    with pytest.raises(ReadError, match="end mark"):
        next(items)


def test_damaged_kept_column_costs_its_row_group_alone(tmp_path):
    texts = [f"text {n} " * 50 for n in range(60)]
    table = pa.table({"image": [picture(n) for n in range(60)], "text": texts})
    options = {"row_group_size": 20, "compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write(tmp_path / "t.parquet", table, **options)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"text 25 text 25", b"text 25 fext 25"))
    items = list(opened(path, keep=("text",)).items())
    assert [item.ordinal for item in items] == list(range(60))
    assert [item.error_kind for item in items] == [None] * 20 + ["unreadable"] * 20 + [None] * 20
    assert dict(items[59].metadata) == {"text": texts[59]}


def test_damaged_page_costs_its_row_group_alone(tmp_path):
    noise = np.random.default_rng(0)
    table = pa.table({"image": [noise.bytes(5000) for _ in range(60)]})
    options = {"row_group_size": 20, "compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write(tmp_path / "t.parquet", table, **options)
    data = bytearray(path.read_bytes())
    at = data.index(table["image"][25].as_py())
    data[at : at + 100] = bytes(100)
    path.write_bytes(data)
    container = opened(path)
    outcomes = []
    for item in container.items():
        try:
            outcomes.append(container.read(item) == table["image"][item.ordinal].as_py())
        except ReadError as error:
            outcomes.append(error.kind)
    assert outcomes[:20] == outcomes[40:] == [True] * 20
    assert set(outcomes[20:40]) <= {True, "unreadable"}
    assert outcomes[25] == "unreadable"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_give_rows_or_errors_and_never_a_crash(tmp_path, kind):
    """In a process of its own: Arrow follows damaged offsets out of its memory."""
    table = pa.table(
        {"image": pa.array([{"bytes": picture(n), "path": "é"} for n in range(40)], STRUCT), "n": ["é"] * 40}
    )
    whole = write(tmp_path / "t", table, kind, row_group_size=15)
    program = (
        "import random, sys; from pathlib import Path\n"
        "from zellige.data.sources.base import ReadError\n"
        "from zellige.data.sources.options import SourceOptions\n"
        "from zellige.data.sources.storage import local_file\n"
        "from zellige.data.sources.tables import TableContainer\n"
        "path, draw = Path(sys.argv[1]), random.Random(0)\n"
        "whole, seen = path.read_bytes(), 0\n"
        "for _ in range(60):\n"
        "    data = bytearray(whole)\n"
        "    for _ in range(4): data[draw.randrange(len(data))] = draw.randrange(256)\n"
        "    path.write_bytes(data)\n"
        "    container = TableContainer(local_file(bytes(path)), SourceOptions(keep=('n',)))\n"
        "    try:\n"
        "        for item in container.items():\n"
        "            seen += 1\n"
        "            try: container.read(item)\n"
        "            except ReadError: pass\n"
        "    except ReadError: pass\n"
        "    container.close()\n"
        "print(seen)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(whole)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) <= 60 * 40


def test_one_huge_row_group_is_read_in_bounded_memory(tmp_path):
    """160 MB in one row group, read by a process that may not take all of that."""
    kind = pa.schema([("image", STRUCT), ("n", pa.int64())])
    blobs = [np.random.default_rng(n).bytes(1 << 20) for n in range(4)]
    cells = pa.array([{"bytes": blobs[n % 4], "path": None} for n in range(160)], STRUCT)
    table = pa.table([cells, pa.array(range(160))], schema=kind)
    path = write(
        tmp_path / "t.parquet", table, compression="none", use_dictionary=False, row_group_size=160, write_batch_size=1
    )
    assert pq.read_metadata(path).num_row_groups == 1
    program = (
        "import re, sys; from pathlib import Path\n"
        "from zellige.data.sources.options import SourceOptions\n"
        "from zellige.data.sources.storage import local_file\n"
        "from zellige.data.sources.tables import TableContainer\n"
        "container = TableContainer(local_file(sys.argv[1].encode()), SourceOptions(keep=('n',)))\n"
        # Not getrusage: its peak is the parent's until this process is larger.
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) >> 10\n"
        "before = peak()\n"
        "print(sum(len(container.read(item)) for item in container.items()))\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True)
    size, grown_mb = map(int, done.stdout.split())
    assert size == 160 << 20
    assert grown_mb < 120, grown_mb


@pytest.mark.long
def test_one_huge_data_page_is_held_twice_and_let_go_at_the_end(tmp_path):
    """What pyarrow writes by default of few and large images: a row group, and nearly all of it in one page."""
    count = 600 if os.environ.get("ZELLIGE_TEST_LONG") == "1" else 100
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(path, pa.schema([("image", pa.binary())])) as writer:
        blobs = [np.random.default_rng(n).bytes(1 << 20) for n in range(count)]
        writer.write_table(pa.table({"image": blobs}), row_group_size=count)
    assert pq.read_metadata(path).num_row_groups == 1
    program = (
        "import re, sys; from pathlib import Path\nimport pyarrow as pa\n"
        "from zellige.data.sources.options import SourceOptions\n"
        "from zellige.data.sources.storage import local_file\n"
        "from zellige.data.sources.tables import TableContainer\n"
        "container = TableContainer(local_file(sys.argv[1].encode()), SourceOptions())\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) >> 10\n"
        "before = peak()\n"
        "print(sum(len(container.read(item)) for item in container.items()) >> 20)\n"
        "print(peak() - before, pa.total_allocated_bytes() >> 20)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True)
    size_mb, grown_mb, held_mb = map(int, done.stdout.split())
    assert size_mb == count
    assert grown_mb < 2 * count + 120, grown_mb
    assert held_mb < 60, held_mb


def test_column_longer_than_one_array_can_be_is_listed_and_read(tmp_path):
    """Chunks are never put together: here they would be over 2 GiB, though the table is small on disk."""
    cells = pa.array([{"bytes": bytes(1 << 20), "path": None}] * 64, STRUCT)
    table = pa.table({"image": pa.chunked_array([cells] * 33)})
    path = write(tmp_path / "t.parquet", table, compression="zstd", row_group_size=64)
    container = opened(path)
    assert sum(1 for _ in container.items()) == 33 * 64
    assert len(container.read(Item("", ordinal=33 * 64 - 1))) == 1 << 20


def test_row_group_with_fewer_rows_than_it_says_never_shows_another_rows_image(tmp_path, monkeypatch):
    table = pa.table({"image": [picture(n) for n in range(30)], "n": range(30)})
    container = opened(write(tmp_path / "t.parquet", table, row_group_size=10), keep=("n",))
    whole = pq.ParquetFile.iter_batches

    def shortened(self: Any, *args: Any, **options: Any) -> Any:
        for batch in whole(self, *args, **options):
            yield batch.slice(0, 7) if options["row_groups"] == [1] else batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", shortened)
    items = list(container.items())
    assert [item.ordinal for item in items] == list(range(30))
    assert [item.error_kind for item in items[17:20]] == ["unreadable"] * 3
    for ordinal in (16, 17, 18, 25, 19, 3):
        if 17 <= ordinal < 20:
            assert why(container, ordinal).kind == "unreadable"
        else:
            assert decode(container.read(items[ordinal])).width == ordinal + 1


def test_a_table_of_a_folder_without_a_column_to_keep_is_a_failed_item_and_not_passed_by(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"x", b"y"]}), tmp_path / "t.parquet")
    source = open_source([tmp_path], SourceOptions(keep=("nope",)))
    (item,) = source.items()
    assert item.error_kind == ErrorKind.NOT_FOUND
    assert "--keep" in (item.error or "")
    assert not source.ignored
