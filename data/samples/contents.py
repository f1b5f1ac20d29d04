"""What stands on a document: rows of an invoice, a receipt, a form or a list, and the facts that they state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from zellige.data.samples import values
from zellige.data.samples.fields import (
    FIELDS,
    FORM,
    INVOICE_HEAD,
    INVOICE_TAIL,
    RECEIPT_END,
    RECEIPT_HEAD,
    RECEIPT_TAIL,
    Fact,
    arbitrary_label,
    label_value,
)
from zellige.data.samples.kit import Kit

Kind = Literal["invoice", "receipt", "form", "list"]
KINDS: tuple[Kind, ...] = ("invoice", "receipt", "form", "list")
KIND_NAMES: dict[Kind, str] = {
    "invoice": "an invoice",
    "receipt": "a receipt",
    "form": "a form",
    "list": "a list of fields",
}
_FORM_TITLES = (
    "Application Form", "Registration", "Employee Record", "Delivery Note", "Membership Form", "Patient Form",
    "Order Form", "Visitor Pass", "Shipping Label", "Enrolment", "Permit", "Certificate",
)  # fmt: skip
_FAREWELLS = ("Thank you!", "Thank you for your visit", "Please come again", "Have a nice day")


@dataclass(frozen=True)
class Row:
    """One row: a heading, a label and its value, an item and its price, plain text, or a rule."""

    kind: Literal["title", "pair", "item", "plain", "rule"]
    left: str = ""
    right: str = ""
    fact: Fact | None = None


@dataclass
class Contents:
    """The rows of one document, top to bottom; ``currency`` is set before or after amounts."""

    kind: Kind
    kit: Kit
    rows: list[Row] = field(default_factory=list)
    currency: str = ""

    def money(self, value: str) -> str:
        return value + self.currency if self.currency.startswith(" ") else self.currency + value

    def field(self, key: str) -> None:
        entry = FIELDS[key]
        value, label = entry.value(self.kit), self.kit.pick(entry.labels)
        # People ask with the words that they see as well as with the usual ones.
        names = (*entry.names, label.lower().rstrip(".")) if self.kit.chance(0.3) else entry.names
        printed = self.money(value) if entry.money else value
        self.rows.append(Row("pair", label, printed, Fact(key, names, value)))

    def keys(self) -> set[str]:
        return {row.fact.key for row in self.rows if row.fact}


def _fields(contents: Contents, keys: Sequence[str], least: int, most: int) -> None:
    for key in contents.kit.rng.sample(keys, contents.kit.rng.randint(least, most)):
        contents.field(key)


def _vendor(contents: Contents) -> None:
    name = values.company(contents.kit)
    contents.rows.append(Row("title", name, fact=Fact("vendor", FIELDS["vendor"].names, name)))


def _items(contents: Contents, count: int) -> None:
    kit = contents.kit
    if kit.chance(0.5):
        contents.rows.append(Row("rule"))
    if contents.kind == "invoice" and kit.chance(0.4):
        contents.rows.append(Row("item", kit.pick(("Item", "Description")), kit.pick(("Amount", "Price"))))
    for item in {values.item(kit): None for _ in range(count)}:
        price = values.amount(kit)
        number = kit.pick(("", "", f"{kit.rng.randint(1, 12)} ", f"{kit.rng.randint(2, 12)} x "))
        printed = contents.money(price) if kit.chance(0.5) else price
        contents.rows.append(Row("item", number + item, printed, Fact("item", (item.lower(),), price)))
    if kit.chance(0.5):
        contents.rows.append(Row("rule"))


def _in_order(kit: Kit, keys: Sequence[str], most: int) -> list[str]:
    return sorted(kit.rng.sample(keys, kit.rng.randint(0, most)), key=keys.index)


def _invoice(contents: Contents, short: bool) -> None:
    kit = contents.kit
    heads = kit.rng.sample(INVOICE_HEAD, kit.rng.randint(1, 3 if short else 6))
    heads = [k for k in ("invoice_number", "date") if kit.chance(0.75) and k not in heads] + heads
    if kit.chance(0.8):
        _vendor(contents)
        heads = [key for key in heads if key != "vendor"]
        if kit.chance(0.3) and "address" not in heads:
            street = values.address(kit)
            contents.rows.append(Row("plain", street, fact=Fact("address", FIELDS["address"].names, street)))
    if kit.chance(0.5):
        contents.rows.append(Row("title", kit.pick(("INVOICE", "Invoice", "TAX INVOICE"))))
    if kit.chance(0.5):
        kit.rng.shuffle(heads)
    for key in heads:
        contents.field(key)
    count = 0 if short else kit.pick((0, 0, 1, 2, 3, 4))
    if count:
        _items(contents, count)
    for key in _in_order(kit, INVOICE_TAIL, 1 if short else 3):
        contents.field(key)
    if kit.chance(0.85):
        contents.field("total")


def _receipt(contents: Contents, short: bool) -> None:
    kit = contents.kit
    _vendor(contents)
    if kit.chance(0.3):
        contents.rows.append(Row("title", kit.pick(("RECEIPT", "Receipt", "SALES RECEIPT"))))
    _fields(contents, RECEIPT_HEAD, 1, 2 if short else 4)
    _items(contents, 1 if short else kit.rng.randint(1, 5))
    for key in _in_order(kit, RECEIPT_TAIL, 1 if short else 3):
        contents.field(key)
    if kit.chance(0.9):
        contents.field("total")
    _fields(contents, RECEIPT_END, 0, 0 if short else 2)
    if kit.chance(0.3):
        contents.rows.append(Row("plain", kit.pick(_FAREWELLS)))


def _form(contents: Contents, short: bool) -> None:
    if contents.kit.chance(0.7):
        contents.rows.append(Row("title", contents.kit.pick(_FORM_TITLES)))
    _fields(contents, FORM, 1 if short else 3, 3 if short else 12)


def label_pairs(kit: Kit, count: int) -> list[tuple[str, str, Fact]]:
    """Up to ``count`` (label as printed, value, fact) with arbitrary labels, none of which is part of another."""
    pairs: list[tuple[str, str, Fact]] = []
    for _ in range(count):
        label = arbitrary_label(kit)
        if any(label in other.names[0] or other.names[0] in label for _, _, other in pairs):
            continue
        value = label_value(kit)
        style = kit.rng.random()
        printed = label.capitalize() if style < 0.65 else label if style < 0.8 else label.title()
        pairs.append((printed if style < 0.95 else label.upper(), value, Fact("label", (label,), value)))
    return pairs


def _list(contents: Contents, short: bool) -> None:
    kit = contents.kit
    if kit.chance(0.5):
        contents.rows.append(Row("title", " ".join(kit.name() for _ in range(kit.rng.randint(1, 2)))))
    for printed, value, fact in label_pairs(kit, kit.rng.randint(1, 3) if short else kit.rng.randint(3, 12)):
        contents.rows.append(Row("pair", printed, value, fact))


def draw_contents(kit: Kit, kind: Kind | None = None, *, short: bool = False) -> Contents:
    """The rows of a random document of this kind; ``short`` keeps it to a few."""
    chosen = kind or kit.rng.choices(KINDS, (0.33, 0.23, 0.22, 0.22))[0]
    currency = kit.rng.choices(("", "$", " EUR", "EUR "), (0.62, 0.26, 0.06, 0.06))[0]
    contents = Contents(chosen, kit, currency=currency)
    {"invoice": _invoice, "receipt": _receipt, "form": _form, "list": _list}[chosen](contents, short)
    return contents
