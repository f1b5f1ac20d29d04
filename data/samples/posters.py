"""Posters and tags: a few short "Label: value" lines scattered over an otherwise empty page, whole or as a window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from zellige.data.samples.contents import label_pairs
from zellige.data.samples.fields import FIELDS, FORM, Fact
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Box, Ink
from zellige.data.samples.kit import Kit
from zellige.data.samples.questions import NOT_SHOWN, Question, ask_field
from zellige.data.samples.sheet import INKS, Sheet, choose_questions, plain

Pair = tuple[str, str, Fact]
_TRIES = 24


def _pairs(kit: Kit, count: int) -> list[Pair]:
    """Mostly arbitrary labels; now and then fields that documents have too."""
    if kit.chance(0.7):
        return label_pairs(kit, count)
    keys = kit.rng.sample(FORM, count)
    made = [(kit.pick(FIELDS[key].labels), FIELDS[key].value(kit), key) for key in keys]
    return [(label, value, Fact(key, FIELDS[key].names, value)) for label, value, key in made]


def _scatter(
    kit: Kit, ink: Ink, page: tuple[int, int], pairs: Sequence[Pair], text_px: tuple[int, int]
) -> list[tuple[Pair, Box, str]]:
    """Set each pair at a free place of the page; those that find none in a few tries are left out."""
    placed: list[tuple[Pair, Box, str]] = []
    shared = kit.pick(kit.faces)
    shade, colon = kit.pick(INKS), kit.pick((": ", ": ", ":  ", " - ", " "))
    for pair in pairs:
        text = pair[0] + colon + pair[1]
        for _ in range(_TRIES):
            size = round(text_px[0] + (text_px[1] - text_px[0]) * kit.rng.random() ** 1.5)
            font = kit.font(size) if kit.chance(0.3) else load_font(shared, size)
            width, tall = font.width(text) * 1.02, font.ascent + font.descent
            if width + 8 > page[0] or tall + 4 > page[1]:
                continue
            x, y = kit.rng.uniform(4, page[0] - width - 4), kit.rng.uniform(2, page[1] - tall - 2)
            box = Box(x, y, x + width, y + tall)
            if not any(box.touches(other, gap=size * 0.6) for _, other, _ in placed):
                placed.append((pair, ink.text(x, y + font.ascent, text, font, shade), text))
                break
    return placed


def poster_sheet(
    kit: Kit,
    width: int,
    height: int,
    *,
    pairs: Sequence[Pair] | None = None,
    text_px: tuple[int, int] = (11, 44),
    questions: int = 4,
) -> Sheet:
    """A whole poster; its text reads line by line from the top."""
    ink = Ink(width, height, kerned=kit.chance(0.3))
    chosen = list(pairs) if pairs is not None else _pairs(kit, kit.rng.randint(1, 6))
    placed = _scatter(kit, ink, (width, height), chosen, text_px)
    facts = [pair[2] for pair, _, _ in placed]
    text = _reading(placed)
    asked = choose_questions(kit, facts, {"vendor"}, questions, absent=0.17)
    return Sheet(ink.pixels, ink.marks(), text, tuple(facts), asked, "a notice", ink.type_px, True)


def _reading(placed: list[tuple[Pair, Box, str]]) -> str | None:
    """Lines from top to bottom; None where two stand side by side, so that their order is anybody's guess."""
    ordered = sorted(placed, key=lambda entry: entry[1].top)
    for (_, one, _), (_, other, _) in itertools.pairwise(ordered):
        if other.top < one.bottom:
            return None
    return "\n".join(plain(text) for _, _, text in ordered) or None


def poster_window_sheet(
    kit: Kit, width: int, height: int, *, text_px: tuple[int, int] = (12, 52), questions: int = 4
) -> Sheet:
    """A window out of a much larger poster, as a tile sees it: often empty, or with one line wholly in it."""
    rng = kit.rng
    page = (round(width * rng.uniform(1.1, 2.8)), round(height * rng.uniform(1.1, 2.8)))
    origin = (rng.randint(0, page[0] - width), rng.randint(0, page[1] - height))
    ink = Ink(width, height, origin=origin, kerned=kit.chance(0.3))
    placed = _scatter(kit, ink, page, _pairs(kit, rng.randint(3, 16)), text_px)
    inside = [pair[2] for pair, box, _ in placed if ink.where(box) == "inside"]
    outside = [pair[2] for pair, box, _ in placed if ink.where(box) == "outside"]
    cut = {name for pair, box, _ in placed if ink.where(box) == "cut" for name in (pair[2].key, *pair[2].names)}
    keys = {fact.key for fact in outside if fact.key != "label"}
    asked = list(choose_questions(kit, inside, cut | keys | {"vendor"}, questions - 1, absent=0.17))
    for fact in outside[:2]:
        if len(asked) < questions and not cut.intersection(fact.names):
            asked.append(Question(ask_field(kit, fact.key, fact.names), NOT_SHOWN))
    caption = "a notice"
    return Sheet(ink.pixels, ink.marks(), None, tuple(inside), tuple(asked), caption, ink.type_px, False)
