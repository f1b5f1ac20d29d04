"""Texts of pieces become the text of the page: nothing doubled, nothing lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zellige.data.tiling import Tile
from zellige.tasks.stitch import Piece, stitched


def piece(x: int, y: int, width: int, height: int, text: str) -> Piece:
    return Piece(Tile(x, y, width, height, 1.0), text)


def test_pieces_below_each_other_are_lines_and_parts_of_one_line_are_joined() -> None:
    pieces = [
        piece(0, 0, 300, 30, "A title"),
        piece(0, 40, 100, 30, "Name:"),
        piece(150, 40, 100, 30, "Olga Rivers"),
        piece(0, 80, 300, 30, "The end"),
    ]
    assert stitched(pieces) == "A title\nName: Olga Rivers\nThe end"


def test_columns_of_the_same_height_stay_apart() -> None:
    assert (
        stitched([piece(0, 0, 100, 60, "one\ntwo"), piece(150, 0, 100, 60, "three\nfour")]) == "one\ntwo\nthree\nfour"
    )


def test_lines_that_two_tiles_saw_come_once() -> None:
    upper = piece(0, 0, 400, 100, "first line\nsecond line\nthird line\nfourth line")
    lower = piece(0, 60, 400, 100, "third line\nfourth lime\nfifth line")
    assert stitched([upper, lower]) == "first line\nsecond line\nthird line\nfourth line\nfifth line"


def test_lines_cut_by_the_edges_of_tiles_are_taken_from_the_tile_that_saw_them_whole() -> None:
    upper = piece(0, 0, 400, 100, "first line\nsecond line\nthird line\nfn,,~h l'n,")
    lower = piece(0, 60, 400, 100, "-_'-_\nthird line\nfourth line")
    assert stitched([upper, lower]) == "first line\nsecond line\nthird line\nfourth line"


def test_halves_of_lines_are_joined_where_they_overlap() -> None:
    left = piece(0, 0, 400, 100, "the quick brown fo\njumps ove\nend")
    right = piece(300, 0, 400, 100, "own fox went\nover the dog")
    assert stitched([left, right]) == "the quick brown fox went\njumps over the dog\nend"


@pytest.mark.parametrize("seen_twice", [2, 5])
def test_a_list_of_lines_that_are_nearly_alike_loses_none_where_tiles_overlap(seen_twice: int) -> None:
    lines = [f"Item number {i} of the list 3.50" for i in range(40)]
    pieces = []
    for first in range(0, 40, 20 - seen_twice):
        read = lines[first : first + 20]
        top = ["-_'-_"] if first else []
        pieces.append(piece(0, 20 * first - 8, 400, 20 * len(read) + 16, "\n".join([*top, *read])))
    assert stitched(pieces) == "\n".join(lines)


def test_the_same_line_twice_on_a_page_is_no_overlap() -> None:
    assert stitched([piece(0, 0, 300, 30, "0.00"), piece(0, 36, 300, 30, "0.00")]) == "0.00\n0.00"


def test_pieces_without_text_and_no_pieces() -> None:
    assert stitched([]) == ""
    assert stitched([piece(0, 0, 9, 9, ""), piece(0, 20, 9, 9, " a \n\n b"), piece(0, 40, 9, 9, " ")]) == "a\nb"


def test_pieces_of_a_page_that_lies_on_a_side_or_its_head_are_joined_as_it_is_read() -> None:
    """Of a page of 300 x 100 pixels: a title, and two parts of one line below it."""
    upright = [piece(0, 0, 300, 30, "A title"), piece(0, 40, 100, 30, "Name:"), piece(150, 40, 100, 30, "Olga Rivers")]
    for turn in (90, 180, 270):
        pieces = [replace(p, tile=laid(p.tile, turn)) for p in upright]
        assert stitched(pieces) == "A title\nName: Olga Rivers"


def laid(tile: Tile, turn: int) -> Tile:
    """Where a tile of an upright page of 300 x 100 pixels lies on that page if ``turn`` makes it upright."""
    x, y, width, height = tile.x, tile.y, tile.width, tile.height
    if turn == 180:
        return Tile(300 - x - width, 100 - y - height, width, height, 1.0, turn=turn)
    left, top = (y, 300 - x - width) if turn == 90 else (100 - y - height, x)
    return Tile(left, top, height, width, 1.0, turn=turn)
