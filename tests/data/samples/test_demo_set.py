"""The inputs of the demo: about forty files that can be read, or are broken in the way that is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zellige.data.decode import DecodeError, DecodeLimits, decode
from zellige.data.samples import parse_caption, scene_from
from zellige.data.samples.demo_set import DOCUMENT_QUESTIONS, LARGE_SCENE, POSTER_FACTS, DemoSet, draw_demo_set

LARGE_CAPTION = (
    "a large red rectangle at the top left, a large green ellipse in the centre "
    "and a large blue rectangle at the bottom right"
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoSet]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, draw_demo_set(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_about_forty_files_are_drawn_and_each_is_accounted_for(drawn: tuple[Path, DemoSet]) -> None:
    folder, demo = drawn
    assert set(files(folder)) == {*demo.captions, *demo.answers, *demo.broken, "poster/poster.png"}
    assert 36 <= demo.files == len(files(folder)) <= 44
    assert len({Path(name).suffix for name in demo.captions}) == 6


def test_all_files_but_the_broken_ones_can_be_read(drawn: tuple[Path, DemoSet]) -> None:
    folder, demo = drawn
    for name, content in files(folder).items():
        if name not in demo.broken:
            assert decode(content, DecodeLimits()).warning is None, name


def test_five_files_are_broken_each_in_the_way_that_is_said(drawn: tuple[Path, DemoSet]) -> None:
    folder, demo = drawn
    assert len(demo.broken) == 5
    for name, kind in demo.broken.items():
        with pytest.raises(DecodeError) as error:
            decode((folder / name).read_bytes(), DecodeLimits())
        assert error.value.kind == kind, name


def test_captions_are_of_the_grammar_and_the_large_scene_is_the_one_asked_for(drawn: tuple[Path, DemoSet]) -> None:
    folder, demo = drawn
    for name, caption in demo.captions.items():
        assert caption == "an empty image" or parse_caption(caption), name
    assert demo.captions[LARGE_SCENE] == LARGE_CAPTION
    large = decode((folder / LARGE_SCENE).read_bytes(), DecodeLimits())
    assert (large.width, large.height) == (1554, 1078)
    assert np.array_equal(large.pixels, scene_from(parse_caption(LARGE_CAPTION), 1554, 1078, (238, 236, 228)).pixels)


def test_grey_of_16_bits_and_a_photo_lying_on_its_side_are_seen_as_they_were_drawn(
    drawn: tuple[Path, DemoSet],
) -> None:
    folder, demo = drawn
    with Image.open(folder / "scenes/grey-16-bit.png") as image:
        assert image.mode.startswith("I;16")
    with Image.open(folder / "scenes/rotated.jpg") as image:
        assert image.size == (256, 384)
    for name, background in (("scenes/grey-16-bit.png", (128, 128, 128)), ("scenes/rotated.jpg", (60, 70, 90))):
        seen = decode((folder / name).read_bytes(), DecodeLimits()).pixels
        height, width = seen.shape[:2]
        wanted = scene_from(parse_caption(demo.captions[name]), width, height, background).pixels
        assert np.abs(seen.astype(int) - wanted).mean() < 3, name


def test_every_document_is_asked_what_it_shows_or_certainly_does_not(drawn: tuple[Path, DemoSet]) -> None:
    _, demo = drawn
    answers = [answer for wanted in demo.answers.values() for answer in wanted.values()]
    assert len(demo.answers) >= 12
    assert all(set(wanted) <= set(DOCUMENT_QUESTIONS.values()) for wanted in demo.answers.values())
    assert 5 <= answers.count("not shown") <= len(answers) / 2


def test_the_poster_is_large_and_bears_all_its_lines(drawn: tuple[Path, DemoSet]) -> None:
    folder, demo = drawn
    assert demo.poster == {f"What is the {label.lower()}?": value for label, value in POSTER_FACTS}
    with Image.open(folder / "poster/poster.png") as image:
        assert image.size == (2400, 1600)


def test_the_same_files_are_drawn_again(drawn: tuple[Path, DemoSet], tmp_path: Path) -> None:
    folder, demo = drawn
    assert draw_demo_set(tmp_path) == demo
    assert files(tmp_path) == files(folder)
