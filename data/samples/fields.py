"""The fields that documents bear: how they are printed, how they are asked for, and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zellige.data.samples import values
from zellige.data.samples.kit import Kit
from zellige.data.samples.words import split_words


@dataclass(frozen=True)
class Field:
    """``labels`` as printed, ``names`` as asked for, and a drawer of values; ``money`` may bear a currency sign."""

    labels: tuple[str, ...]
    names: tuple[str, ...]
    value: Callable[[Kit], str]
    money: bool = False


@dataclass(frozen=True)
class Fact:
    """One thing that a page says: the field's key ("label" for arbitrary ones), how it is asked for, its value."""

    key: str
    names: tuple[str, ...]
    value: str


def _field(labels: str, names: str, value: Callable[[Kit], str], money: bool = False) -> Field:
    return Field(tuple(labels.split("|")), tuple(names.split("|")), value, money)


def _position(kit: Kit) -> str:
    return kit.name() + (f" {kit.pick(values.POSITIONS)}" if kit.chance(0.5) else "")


FIELDS: dict[str, Field] = {
    "invoice_number": _field(
        "Invoice Number|Invoice No|Invoice No.|Invoice #|Invoice|Inv. No.|Invoice ID",
        "invoice number|invoice number|invoice number|invoice no|invoice id|number of the invoice",
        values.code,
    ),
    "receipt_number": _field(
        "Receipt Number|Receipt No|Receipt #|Receipt", "receipt number|receipt number|receipt no", values.code
    ),
    "order_number": _field(
        "Order Number|Order No|Order #|Order", "order number|order number|order no|order id", values.code
    ),
    "po_number": _field("PO Number|P.O. Number|PO #", "PO number|PO number|purchase order number", values.code),
    "date": _field("Date|Date|Invoice Date|Date of issue|Issued", "date|date|date|issue date", values.date),
    "due_date": _field(
        "Due Date|Due|Payment due|Pay by", "due date|due date|payment due date|payment deadline", values.date
    ),
    "customer": _field(
        "Customer|Bill To|Billed to|Client|Sold to", "customer|customer|client|customer name|buyer", values.person
    ),
    "vendor": _field(
        "Vendor|Seller|From|Supplier", "vendor|vendor|seller|supplier|company|vendor name|company name", values.company
    ),
    "terms": _field("Terms|Payment Terms", "terms|payment terms", lambda kit: kit.pick(values.TERMS)),
    "phone": _field(
        "Phone|Tel|Telephone|Ph|Phone No", "phone number|phone number|phone|telephone number|telephone", values.phone
    ),
    "email": _field("Email|E-mail", "email|email|email address|e-mail", values.email),
    "address": _field("Address", "address|address|street address", values.address),
    "city": _field("City|Town", "city|city|town", values.city),
    "subtotal": _field("Subtotal|Sub-total|Sub total", "subtotal|subtotal|sub-total", values.amount, True),
    "tax": _field("Tax|VAT|Sales tax|GST", "tax|tax|tax amount|VAT", values.amount, True),
    "discount": _field("Discount", "discount|discount|rebate", values.amount, True),
    "shipping": _field(
        "Shipping|Delivery|Freight", "shipping cost|shipping|delivery cost|freight", values.amount, True
    ),
    "total": _field(
        "Total|Total|TOTAL|Total Due|Amount Due|Grand Total|Total amount",
        "total|total|total|total amount|amount due|grand total|total price|total sum",
        values.amount,
        True,
    ),
    "cash": _field("Cash|Cash paid|Tendered", "cash paid|cash|cash given", values.amount, True),
    "change": _field("Change|Change due", "change|change due|change given", values.amount, True),
    "time": _field("Time", "time|time|time of day", values.time),
    "cashier": _field("Cashier|Served by|Clerk", "cashier|cashier|clerk|name of the cashier", values.first_name),
    "payment": _field(
        "Payment|Paid by|Method", "payment method|payment method|method of payment", lambda k: k.pick(values.PAYMENTS)
    ),
    "name": _field("Name|Full Name|Applicant", "name|name|full name|applicant", values.person),
    "dob": _field("Date of Birth|DOB|Born", "date of birth|date of birth|birth date|birthday", values.date),
    "id": _field("ID|ID Number|ID No", "ID number|ID number|ID|id no", values.code),
    "department": _field("Department|Dept", "department", lambda kit: kit.name()),
    "position": _field("Position|Role|Job Title", "position|role|job title", _position),
    "country": _field("Country", "country", lambda kit: kit.pick(values.COUNTRIES)),
    "account": _field(
        "Account|Account No|Account Number", "account number|account number|account", lambda k: values.digits(k, 6, 10)
    ),
    "reference": _field("Reference|Ref|Ref. No", "reference|reference|reference number", values.code),
    "weight": _field("Weight", "weight", values.weight),
    "quantity": _field("Quantity|Qty", "quantity|quantity|number of pieces", values.count),
    "signature": _field("Signed|Signed by|Approved by", "signer|signature|name of the signer", values.person),
    "expires": _field(
        "Expires|Expiry date|Valid until", "expiry date|expiry date|expiration date|end of validity", values.date
    ),
}

INVOICE_HEAD = split_words(
    "invoice_number date due_date customer po_number terms order_number vendor email phone address account reference"
)
INVOICE_TAIL = split_words("subtotal tax discount shipping")
RECEIPT_HEAD = split_words("receipt_number date time cashier phone address order_number")
RECEIPT_TAIL = split_words("subtotal tax discount")
RECEIPT_END = split_words("cash change payment reference")
FORM = split_words(
    "name dob id department position country address city phone email account reference date weight quantity signature "
    "expires customer order_number total invoice_number vendor time"
)

#: Fields that may be asked for when absent, each with what must be absent too for "not shown" to be beyond doubt.
ABSENT: dict[str, tuple[str, ...]] = {
    "invoice_number": (),
    "receipt_number": ("invoice_number", "reference"),
    "order_number": ("po_number",),
    "po_number": ("order_number",),
    "date": ("due_date", "expires", "dob"),
    "due_date": (),
    "customer": ("name", "signature"),
    "vendor": ("customer",),
    "terms": ("due_date",),
    "phone": (),
    "email": (),
    "address": ("city",),
    "city": ("address", "country"),
    "subtotal": ("total",),
    "tax": (),
    "discount": (),
    "shipping": (),
    "total": ("subtotal", "cash"),
    "cash": ("total", "payment"),
    "change": (),
    "time": (),
    "cashier": ("name", "signature"),
    "payment": ("cash", "terms"),
    "name": ("customer", "signature", "cashier", "vendor"),
    "dob": (),
    "id": ("account", "invoice_number", "receipt_number", "order_number", "reference"),
    "department": (),
    "country": (),
    "account": ("id",),
    "reference": ("invoice_number", "receipt_number", "order_number"),
    "weight": (),
    "signature": ("name",),
    "expires": ("due_date",),
}

#: Labels of posters, tags and lists, with the kind of value that usually stands there.
LABELS = split_words(
    "gate locker room seat shelf platform floor desk bay table row lane dock ward court channel line route bus train "
    "flight hall box bin key badge code pin model batch serial size colour level score speed height width depth "
    "temperature price rate version unit zone sector section chapter page volume teacher doctor host guest driver "
    "pilot captain owner author coach leader track stand booth tower block pier terminal entrance exit station stop "
    "area team group class course exam opens closes starts ends deadline speaker topic title status priority language "
    "currency plate tag crate pallet container shift crew vessel berth parcel ticket"
)


def label_value(kit: Kit) -> str:
    """What may stand after an arbitrary label."""
    kinds = (
        (values.code, 3.0),
        (lambda k: values.digits(k, 1, 4), 3.0),
        (lambda k: k.word(), 2.0),
        (lambda k: k.name(), 2.0),
        (values.person, 1.5),
        (values.amount, 1.5),
        (values.time, 1.0),
        (values.date, 1.0),
        (lambda k: f"{k.name()} {k.name()}", 1.0),
        (values.percentage, 0.4),
        (values.weight, 0.3),
    )
    return kit.rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0](kit)


def arbitrary_label(kit: Kit) -> str:
    """A label of no known field, in lower case, of one or two words."""
    first = kit.pick(LABELS) if kit.chance(0.45) and not kit.held_out_words else kit.word()
    return f"{first} {kit.word()}" if kit.chance(0.25) else first
