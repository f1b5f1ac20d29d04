"""Single lines and blocks of text: words, fields, numbers, addresses and random characters."""

from __future__ import annotations

import string

from zellige.data.samples import values
from zellige.data.samples.fields import FIELDS, Fact
from zellige.data.samples.glyphs import Font
from zellige.data.samples.ink import Ink
from zellige.data.samples.kit import Kit
from zellige.data.samples.questions import READ, ask
from zellige.data.samples.sheet import INKS, Sheet, choose_questions, plain
from zellige.data.samples.words import is_clean

_SIGNS = "-/.,:#$%&()@+'*_!?;=\"<>[]"
_ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_uppercase + string.digits,
    string.digits,
    string.ascii_lowercase,
    string.ascii_letters + string.digits + _SIGNS,
)
_NUMBERS = (values.code, values.amount, values.date, values.phone, values.percentage, values.time)
_NAMES = (values.address, values.person, values.company, values.email, values.city)


def _words(kit: Kit) -> str:
    text = " ".join(kit.word() for _ in range(kit.rng.randint(1, 8)))
    style = kit.rng.random()
    if style < 0.6:
        text = text.capitalize() if style < 0.35 else text.title() if style < 0.5 else text.upper()
    return text + (kit.pick(".,!?:;") if kit.chance(0.3) else "")


def _field(kit: Kit) -> tuple[str, Fact]:
    key = kit.pick(tuple(FIELDS))
    field = FIELDS[key]
    value = field.value(kit)
    sign = "$" if field.money and kit.chance(0.25) else ""
    return kit.pick(field.labels) + kit.pick((": ", ":  ", " ")) + sign + value, Fact(key, field.names, value)


def line_text(kit: Kit) -> tuple[str, Fact | None]:
    """One line of text, and the fact that it states where it is a field."""
    chance = kit.rng.random()
    if chance < 0.38:
        return _words(kit), None
    if chance < 0.62:
        return _field(kit)
    if chance < 0.74:
        return " ".join(kit.pick(_NUMBERS)(kit) for _ in range(kit.rng.randint(1, 3))), None
    if chance < 0.84:
        return kit.pick(_NAMES)(kit) + (f", {kit.pick(_NAMES)(kit)}" if kit.chance(0.4) else ""), None
    if chance < 0.92:
        alphabet = kit.pick(_ALPHABETS)
        return " ".join(values.letters(kit, 1, 10, alphabet) for _ in range(kit.rng.randint(1, 4))), None
    count = f"{kit.rng.randint(1, 20)} x " if kit.chance(0.5) else ""
    return f"{count}{values.item(kit)} {values.amount(kit)}", None


def _cut_clean(text: str) -> str:
    """The text, cut somewhere, less the end of its last word as long as that spells something offensive."""
    while not is_clean(text.rsplit(" ", 1)[-1]):
        text = text[:-1]
    return text.rstrip()


def _fitted(kit: Kit, text: str, font: Font, room: float) -> str:
    """The text cut (mostly between words) until it fits; never empty."""
    while text and font.width(text) > room:
        shorter = text[:-1]
        text = shorter.rsplit(" ", 1)[0].rstrip() if " " in shorter and kit.chance(0.7) else _cut_clean(shorter)
    return text or kit.pick(string.digits)


def draw_text(kit: Kit, width: int, height: int, *, lines: int = 1, text_px: tuple[int, int] = (10, 30)) -> Sheet:
    """A sheet with up to ``lines`` lines of text, as many as fit; type of ``text_px`` pixels, less if it must."""
    rng = kit.rng
    ink = Ink(width, height, kerned=kit.chance(0.2))
    least = text_px[0] + round(4 * (1 - kit.difficulty))
    size = min(round(least + (text_px[1] - least) * rng.random() ** 1.4), int(height / lines / 1.2))
    size = max(size, min(text_px[0], int(height / 1.35)))
    font, shade = kit.font(size), kit.pick(INKS)
    step = max(size * rng.uniform(1.15, 1.5), font.ascent + font.descent - size * 0.1)
    room = height - step * lines
    y = rng.uniform(0, max(0.0, room)) + font.ascent
    indent = rng.uniform(3, max(3, width * 0.15))
    written: list[str] = []
    fact: Fact | None = None
    for _ in range(lines):
        if written and y + font.descent > height:
            break
        text, stated = line_text(kit)
        if kit.difficulty < 1 and rng.random() > kit.difficulty:
            text, stated = _cut_clean(text[: rng.randint(1, 12)]).strip() or "7", None
        fitted = _fitted(kit, text, font, width - 8)
        fact = stated if lines == 1 and fitted == text else None
        length = font.width(fitted)
        x = indent if lines > 1 and kit.chance(0.8) else rng.uniform(3, max(3.0, width - length - 4))
        ink.text(min(x, max(3.0, width - length - 4)), y, fitted, font, shade)
        written.append(plain(fitted))
        y += step
    shown = [fact] if fact else []
    asked = choose_questions(kit, shown, set(), 1, absent=0.2) if fact else ()
    caption = "a line of text" if len(written) == 1 else "lines of text"
    questions = (ask(kit, READ, "\n".join(written)), *asked)
    return Sheet(ink.pixels, ink.marks(), "\n".join(written), tuple(shown), questions, caption, ink.type_px, True)
