"""Sets the rows of a document on a page: type, margins, leading, and where labels and values stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zellige.data.samples.contents import Contents, Row
from zellige.data.samples.glyphs import load_font
from zellige.data.samples.ink import Box, Ink
from zellige.data.samples.kit import Kit
from zellige.data.samples.sheet import INKS, plain

#: Space in pixels kept between the last line and the end of the page.
_FOOT = 2


@dataclass(frozen=True)
class Placed:
    """One visual line as it was set: its rows with the boxes of each, and what it reads."""

    rows: tuple[tuple[Row, Box], ...]
    text: str


class Typesetter:
    """Sets rows on a page of (width, height) from its top until it is full; rows that do not fit are left out."""

    def __init__(self, kit: Kit, ink: Ink, page: tuple[int, int], text_px: tuple[int, int]) -> None:
        rng = kit.rng
        self.kit, self.ink = kit, ink
        self.width, self.height = page
        least = text_px[0] + round(4 * (1 - kit.difficulty))
        most = max(least + 1, min(text_px[1], self.width // 15))
        size: int = min(round(least + (most - least) * rng.random() ** 1.7), max(text_px[0], self.width // 11))
        face = kit.pick(kit.faces)
        self.label_font = load_font(face, size)
        self.value_font = self.label_font if rng.random() < 0.6 else kit.font(size)
        self.title_font = kit.font(min(30, size + rng.randint(2, 9)))
        self.least_px = text_px[0]
        self.shade = kit.pick(INKS)
        self.value_shade = kit.pick(INKS) if rng.random() < 0.3 else self.shade
        self.style = rng.choices(("colon", "right", "column", "two"), (0.42, 0.26, 0.2, 0.12))[0]
        self.colon = ":" if self.style == "colon" or rng.random() < 0.75 else ""
        narrow = max(5, min(26, self.width // 14))
        self.left = rng.randint(4, narrow)
        self.right = self.width - rng.randint(4, narrow)
        tallest = max(f.ascent + f.descent for f in (self.label_font, self.value_font))
        self.step = max(size * rng.uniform(1.15, 1.75), tallest * 0.98)
        self.column = self.left + (self.right - self.left) * rng.uniform(0.42, 0.52)
        self.centred = rng.random() < 0.5

    def set(self, contents: Contents) -> list[Placed]:
        """Set as many rows as fit and say where each stands."""
        count = sum(0.4 if row.kind == "rule" else 1.0 for row in contents.rows)
        slack = self.height - count * self.step - 12
        y = self.kit.rng.uniform(2, max(4.0, min(self.height * 0.25, slack)))
        placed: list[Placed] = []
        for group in self._grouped(contents.rows):
            kind = group[0].kind
            if kind == "rule":
                if y + self.step < self.height:
                    self._rule(y + self.step * 0.2)
                y += self.step * 0.4
                continue
            drop = self._drop(group[0])
            if y + drop > self.height - _FOOT:
                break
            line = self._line(group, y)
            if line is not None:
                placed.append(line)
                y += drop
        return placed

    def _grouped(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Rows as they share visual lines: pairs two by two where the style asks for it and they fit."""
        waiting: list[Row] = []
        for row in rows:
            half = row.kind == "pair" and self.style == "two" and self._pair_width(row) + 14 < self._room() / 2
            if waiting and not half:
                yield waiting
                waiting = []
            if half:
                waiting.append(row)
                if len(waiting) == 2:
                    yield waiting
                    waiting = []
            else:
                yield [row]
        if waiting:
            yield waiting

    def _room(self) -> float:
        return self.right - self.left

    def _pair_width(self, row: Row) -> float:
        return (
            self.label_font.width(row.left + self.colon) + self.value_font.width(row.right) + self.value_font.size * 0.4
        )

    def _drop(self, row: Row) -> float:
        return max(self.step, self.title_font.size * 1.25) if row.kind == "title" else self.step

    def _rule(self, y: float) -> None:
        rng = self.kit.rng
        self.ink.rule(self.left, y, self.right, rng.randint(90, 255), rng.randint(1, 2))

    def _line(self, rows: list[Row], y: float) -> Placed | None:
        row = rows[0]
        if row.kind in ("title", "plain"):
            return self._heading(row, y)
        baseline = y + (self.step - self.label_font.ascent - self.label_font.descent) / 2 + self.label_font.ascent
        if row.kind == "item":
            return self._item(row, baseline)
        if len(rows) == 2:
            half = self._room() / 2
            boxes = [self._pair(r, self.left + half * i, baseline) for i, r in enumerate(rows)]
            text = " ".join(f"{r.left}{self.colon} {r.right}" for r in rows)
            return Placed(tuple(zip(rows, boxes, strict=True)), plain(text))
        box = self._single(row, baseline)
        return Placed(((row, box),), plain(f"{row.left}{self.colon} {row.right}")) if box else None

    def _heading(self, row: Row, y: float) -> Placed | None:
        font = self.title_font if row.kind == "title" else self.label_font
        while font.width(row.left) > self._room() and font.size > self.least_px + 1:
            font = load_font(font.face, font.size - 1)
        width = font.width(row.left)
        if width > self._room():
            return None
        x = (self.width - width) / 2 if self.centred else float(self.left)
        box = self.ink.text(x, y + self._drop(row) * 0.5 + font.ascent * 0.42, row.left, font, self.value_shade)
        return Placed(((row, box),), plain(row.left))

    def _item(self, row: Row, baseline: float) -> Placed | None:
        price = self.value_font.width(row.right)
        if self.label_font.width(row.left) + price + 8 > self._room():
            return None
        box = self.ink.text(self.left, baseline, row.left, self.label_font, self.shade)
        end = self.ink.text(self.right - price, baseline, row.right, self.value_font, self.shade)
        return Placed(((row, _around(box, end)),), plain(f"{row.left} {row.right}"))

    def _single(self, row: Row, baseline: float) -> Box | None:
        label = self.label_font.width(row.left + self.colon)
        value = self.value_font.width(row.right)
        if self.style == "right" and label + value + 10 <= self._room():
            return self._pair(row, self.left, baseline, self.right - value)
        if self.style == "column" and self.left + label + 6 <= self.column and self.column + value <= self.width - 3:
            return self._pair(row, self.left, baseline, self.column)
        start = self.left + label + self.label_font.size * self.kit.rng.uniform(0.28, 0.7)
        return self._pair(row, self.left, baseline, start) if start + value <= self.width - 3 else None

    def _pair(self, row: Row, x: float, baseline: float, value_x: float | None = None) -> Box:
        label = self.ink.text(x, baseline, row.left + self.colon, self.label_font, self.shade)
        start = label.right + self.label_font.size * 0.35 if value_x is None else value_x
        return _around(label, self.ink.text(start, baseline, row.right, self.value_font, self.value_shade))


def _around(one: Box, other: Box) -> Box:
    return Box(
        min(one.left, other.left), min(one.top, other.top), max(one.right, other.right), max(one.bottom, other.bottom)
    )
