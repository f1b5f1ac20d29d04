"""Values as they stand on paper: amounts, dates, numbers, names, addresses. Every letter of them is checked."""

from __future__ import annotations

import string

from zellige.data.samples.kit import Kit
from zellige.data.samples.words import is_clean, split_words

FIRST_NAMES = split_words(
    "James Mary Robert Linda John Patricia Michael Susan David Karen Emma Noah Olivia Liam Ava Lucas Sofia Mateo Hana "
    "Yuki Chen Wei Priya Arjun Fatima Omar Elena Ivan Chloe Hugo Ingrid Lars Zoe Nina Felix Clara Oscar Ruth Samuel "
    "Irene Anna Peter Laura Simon Julia Martin Alice Daniel Grace Victor"
)
LAST_NAMES = split_words(
    "Smith Johnson Brown Garcia Miller Davis Lopez Wilson Moore Taylor Lee Walker Young King Wright Scott Green Baker "
    "Adams Nelson Carter Novak Rossi Weber Dubois Silva Tanaka Kim Singh Khan Petrov Larsen Costa Fischer Murphy Kelly "
    "Evans Stone Hughes Price Morgan Cooper Reed Bailey Ward Foster Bennett Gray Ross Hayes"
)
COMPANY_ENDINGS = split_words(
    "Ltd Inc LLC Supplies Traders Market Store Cafe Foods Books Hardware Electronics Motors Pharmacy Bakery Garden "
    "Studio Systems Partners Services Group Tools Textiles Logistics Farms Co"
)
STREETS = split_words("Street Road Avenue Lane Drive Way Court Place Square Park")
ITEMS = split_words(
    "Coffee Tea Bread Milk Butter Cheese Apples Bananas Rice Pasta Sugar Salt Flour Eggs Juice Water Soap Towels Paper "
    "Pens Notebook Stapler Cable Mouse Keyboard Monitor Lamp Chair Desk Hammer Nails Screws Paint Brush Bolts Drill "
    "Gloves Helmet Filter Battery Charger Adapter Printer Toner Labels Boxes Tape Glue Candles Flowers Soup Salad "
    "Sandwich Muffin Cookies Cake Pie Honey Jam Olives Pepper Tomatoes Onions Carrots Beans Lentils"
)
MONTHS = split_words("January February March April May June July August September October November December")
COUNTRIES = split_words(
    "France Japan Brazil Kenya Norway Canada India Chile Spain Italy Egypt Peru Ghana Poland Turkey Vietnam Portugal "
    "Mexico Greece Finland"
)
POSITIONS = ("Manager", "Engineer", "Clerk", "Analyst")
TERMS = ("Net 30", "Net 15", "Net 60", "Due on receipt", "Prepaid", "Net 10", "Net 45")
PAYMENTS = ("Cash", "Visa", "Mastercard", "Card", "Check", "Transfer", "Amex", "Voucher")


def digits(kit: Kit, least: int, most: int) -> str:
    return "".join(kit.rng.choices(string.digits, k=kit.rng.randint(least, most)))


def letters(kit: Kit, least: int, most: int, alphabet: str = string.ascii_uppercase) -> str:
    """Random characters whose letters spell nothing offensive."""
    while True:
        text = "".join(kit.rng.choices(alphabet, k=kit.rng.randint(least, most)))
        if is_clean(text):
            return text


def amount(kit: Kit) -> str:
    reach = kit.rng.random()
    low, high = (0.5, 20.0) if reach < 0.35 else (10.0, 999.0) if reach < 0.8 else (1000.0, 9999.0)
    value = kit.rng.uniform(low, high)
    return f"{value:,.2f}" if kit.chance(0.5) else f"{value:.2f}"


def date(kit: Kit) -> str:
    year, month, day = kit.rng.randint(1998, 2029), kit.rng.randint(1, 12), kit.rng.randint(1, 28)
    name = MONTHS[month - 1]
    return kit.pick(
        (
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}/{month:02d}/{year}",
            f"{month:02d}/{day:02d}/{year % 100:02d}",
            f"{day} {name[:3]} {year}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{day:02d}.{month:02d}.{year}",
            f"{name[:3]} {day}, {year}",
        )
    )


def time(kit: Kit) -> str:
    hour, minute = kit.rng.randint(0, 23), kit.rng.randint(0, 59)
    return (
        f"{hour:02d}:{minute:02d}" if kit.chance(0.85) else f"{hour % 12 or 12}:{minute:02d} {kit.pick(('am', 'pm'))}"
    )


def code(kit: Kit) -> str:
    """A number as invoices, orders and forms bear it."""
    rng = kit.rng
    match rng.randrange(8):
        case 0:
            return f"{kit.pick(('INV', 'RE', 'ORD', 'PO', 'DOC', 'NO', 'TX'))}-{digits(kit, 3, 7)}"
        case 1:
            return digits(kit, 3, 9)
        case 2:
            return letters(kit, 1, 3) + digits(kit, 3, 7)
        case 3:
            return f"{letters(kit, 1, 3)}-{digits(kit, 2, 4)}-{digits(kit, 2, 4)}"
        case 4:
            return letters(kit, 5, 9, string.ascii_uppercase + string.digits)
        case 5:
            return f"{rng.randint(2015, 2029)}-{digits(kit, 3, 5)}"
        case 6:
            return letters(kit, 1, 1) + digits(kit, 2, 5) + kit.pick("/-.") + digits(kit, 1, 3)
        case _:
            return f"{letters(kit, 1, 2)}{digits(kit, 1, 2)}"


def person(kit: Kit) -> str:
    """First and last name; made of words in evaluation, so that no name was seen in training."""
    if kit.held_out_words or kit.chance(0.4):
        first = kit.pick(FIRST_NAMES) if not kit.held_out_words and kit.chance(0.5) else kit.name()
        return f"{first} {kit.name()}"
    return f"{kit.pick(FIRST_NAMES)} {kit.pick(LAST_NAMES)}"


def first_name(kit: Kit) -> str:
    return kit.name() if kit.held_out_words or kit.chance(0.4) else kit.pick(FIRST_NAMES)


def company(kit: Kit) -> str:
    first, ending = kit.name(), kit.pick(COMPANY_ENDINGS)
    match kit.rng.randrange(6):
        case 0:
            return f"{first} {ending}"
        case 1:
            return f"{first} & {kit.name()}" + (f" {ending}" if kit.chance(0.5) else "")
        case 2:
            return f"{first} {kit.name()} {ending}"
        case 3:
            return f"{first if kit.held_out_words else kit.pick(LAST_NAMES)} {ending}"
        case 4:
            return f"{first} {ending}".upper()
        case _:
            return f"{first} {kit.pick(STREETS)} {ending}"


def address(kit: Kit) -> str:
    return f"{kit.rng.randint(1, 999)} {kit.name()} {kit.pick(STREETS)}"


def city(kit: Kit) -> str:
    return kit.name() + (f" {digits(kit, 4, 5)}" if kit.chance(0.5) else "")


def phone(kit: Kit) -> str:
    return kit.pick(
        (
            f"{digits(kit, 3, 3)}-{digits(kit, 4, 4)}",
            f"({digits(kit, 3, 3)}) {digits(kit, 3, 3)}-{digits(kit, 4, 4)}",
            f"+{kit.rng.randint(1, 99)} {digits(kit, 3, 3)} {digits(kit, 3, 3)} {digits(kit, 3, 3)}",
            f"{digits(kit, 3, 3)} {digits(kit, 3, 3)} {digits(kit, 4, 4)}",
        )
    )


def email(kit: Kit) -> str:
    user = f"{kit.word()}{kit.pick('._')}{kit.word()}" if kit.chance(0.4) else kit.word() + digits(kit, 0, 3)
    return f"{user}@{kit.word()}.{kit.pick(('com', 'org', 'net', 'io'))}"


def percentage(kit: Kit) -> str:
    return f"{kit.rng.randint(1, 99)}%"


def weight(kit: Kit) -> str:
    return f"{kit.rng.uniform(0.1, 99):.1f} kg"


def count(kit: Kit) -> str:
    return str(kit.rng.randint(1, 500))


def item(kit: Kit) -> str:
    """Something sold: a usual item or a word; never a held-out word in training."""
    return kit.pick(ITEMS) if kit.chance(0.7) and not kit.held_out_words else kit.name()
