"""``wds:`` reads a tar as samples."""

from __future__ import annotations

import pytest


@pytest.fixture
def shard(tmp_path, make_tar, png):
    members = [
        ("a/000.json", b'{"title": "One", "n": 1}'),
        ("a/000.left.png", png(0)),
        ("a/000.right.png", png(1)),
        ("a/000.txt", b"caption"),
        ("a/001.txt", b"no image here"),
        ("a/002.x.cls", b"7"),
        ("a/002.jpg", png(2, "JPEG")),
    ]
    path = tmp_path / "s.tar"
    path.write_bytes(make_tar(members))
    return path


def test_the_images_of_a_sample_are_items_with_its_companions(listed, shard, png):
    source, items = listed(f"wds:{shard}", keep=("txt", "title", "n", "x.cls"))
    assert [(i.member, i.ordinal, i.error_kind, dict(i.metadata)) for i in items] == [
        ("a/000.left.png", 1, None, {"title": "One", "n": "1", "txt": "caption"}),
        ("a/000.right.png", 2, None, {"title": "One", "n": "1", "txt": "caption"}),
        ("a/001", 4, "empty", {"txt": "no image here"}),
        ("a/002.jpg", 6, None, {"x.cls": "7"}),
    ]
    assert source.ignored == {}
    assert source.inputs == (f"wds:file://{shard}",)
    assert source.read(items[1]) == png(1)
    assert listed(*source.inputs, keep=("txt", "title", "n", "x.cls"))[1] == items


def test_without_the_prefix_members_are_just_members(listed, shard):
    source, items = listed(shard)
    assert [i.ordinal for i in items] == [1, 2, 6]
    assert source.ignored == {"not an image": 4}


def test_half_a_sample_at_a_cut_is_flagged(tmp_path, listed, make_tar):
    members = [("000.jpg", bytes(3000)), ("000.txt", b"x"), ("001.jpg", bytes(3000)), ("001.txt", b"y")]
    whole = make_tar(members)
    end_of_001_jpg = 512 + 3072 + 1024 + 512 + 3072
    for cut, expected in [
        (4608, [("000.jpg", None), (None, "truncated")]),
        (4708, [("000.jpg", None), (None, "truncated")]),
        (5120, [("000.jpg", None), ("001.jpg", "truncated"), (None, "truncated")]),
        (end_of_001_jpg, [("000.jpg", None), ("001.jpg", "truncated"), (None, "truncated")]),
        (end_of_001_jpg + 1024, [("000.jpg", None), ("001.jpg", None), (None, "truncated")]),
        (len(whole), [("000.jpg", None), ("001.jpg", None)]),
    ]:
        (tmp_path / "s.tar").write_bytes(whole[:cut])
        _, items = listed(f"wds:{tmp_path}/s.tar")
        assert [(i.member, i.error_kind) for i in items] == expected, cut


def test_samples_that_the_filters_leave_out_are_no_failures(listed, shard):
    _, items = listed(f"wds:{shard}", include=("*.jpg",))
    assert [(i.member, i.error_kind) for i in items if i.error_kind is None] == [("a/002.jpg", None)]
    assert "a/000" not in [i.member for i in items]


def test_globs_and_folders_of_shards_are_read_as_samples_too(listed, shard, tmp_path):
    whole = listed(f"wds:{shard}")[1]
    assert listed(f"wds:{tmp_path}/*.tar")[1] == whole
    assert listed(f"wds:{tmp_path}")[1] == whole
