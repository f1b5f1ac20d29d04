"""How questions are worded. Evaluation has wordings of its own that training never uses."""

from __future__ import annotations

from dataclasses import dataclass

from zellige.data.samples.fields import Fact
from zellige.data.samples.kit import Kit

NOT_SHOWN = "not shown"
NO_TEXT = "no text"
EMPTY = "an empty image"


@dataclass(frozen=True)
class Question:
    """One question about an image and the right answer."""

    text: str
    answer: str


@dataclass(frozen=True)
class Wording:
    """Ways to say one thing: the usual one, others for training, and others kept for evaluation."""

    usual: str
    training: tuple[str, ...]
    held_out: tuple[str, ...]

    def choose(self, kit: Kit, usual: float = 0.4) -> str:
        if kit.held_out_phrases:
            return kit.pick(self.held_out)
        return self.usual if kit.chance(usual) else kit.pick(self.training)


FIELD = Wording(
    "What is the {}?",
    (
        "What's the {}?", "Give me the {}.", "Please read the {}.", "Can you find the {}?", "Find the {}.",
        "Read the {}.", "Tell me the {}.", "Which {} is shown?", "{}?", "{}", "{} please", "the {}", "the {}?",
        "What {} is given?", "What {} is shown here?", "Which {} is given?", "Please give me the {}.",
        "Could you tell me the {}?", "Can you tell me what the {} is?", "I need the {}.", "I need to know the {}.",
        "Show me the {}.", "What does it say for the {}?", "What is written as the {}?", "Extract the {}.",
        "Return the {}.", "Look for the {}.", "Look at the document and tell me the {}.",
        "Do you see the {}? What is it?",
        "What is the {} in this image?", "What is the {} on this document?", "What is the {} here?", "value of {}",
        "What value does the {} have?", "Please find the {} in the picture.", "Write down the {}.",
        "What's written under {}?", "What stands next to {}?", "{}: ?", "And the {}?", "Do you know the {}?",
        "May I have the {}?", "Find me the {} please.", "I am looking for the {}.", "Name the {}.", "State the {}.",
        "What would the {} be?", "Read me the {}, please.", "Can you see a {}? If so, what is it?", "get {}",
        "Check the {} for me.", "What is the {} that is printed?", "The {} is what?", "Is there a {}? Which one?",
        "What is the {}? Answer with the value only.", "Give only the {}.", "Tell me: what is the {}?",
        "Please tell me what is shown as {}.", "How is the {} given?", "Spell out the {}.", "Copy the {}.",
    ),
    (
        "Would you tell me the {}?", "I want to know the {}.", "Can you read out the {}?", "Please state the {}.",
        "Let me know the {}.", "What is the {} shown in the picture?", "Can I get the {}?", "{}, please.",
        "Could you find the {} for me?", "Please look up the {}.", "What {} does it show?", "Read out the {} to me.",
    ),
)  # fmt: skip

#: Questions that name a field without its name: (training, held out).
SPECIAL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vendor": (
        (
            "Who is the vendor?", "Which company is this from?", "Who issued this?", "Which shop is this?",
            "Who is the seller?", "Who sent this?", "Who is the supplier?", "Who sold this?", "Which company is it?",
            "What company issued this?", "Who is this from?", "Which store is this from?",
        ),
        ("What company is this from?", "Who is selling?", "Which company sent this?"),
    ),
    "customer": (
        ("Who is the customer?", "Who is the client?", "Who is billed?", "Who bought this?", "Who is it billed to?"),
        ("Who is the buyer?", "Who was this sold to?"),
    ),
    "total": (
        (
            "How much is the total?", "How much is due?", "How much do I have to pay?", "How much did it cost?",
            "How much is it in total?", "How much is to be paid?", "What does it cost in total?",
            "How much altogether?",
            "What do I owe?", "How much must be paid?", "What is the amount to pay?",
        ),
        ("How much do I owe?", "What is to be paid in total?", "How much does it cost?"),
    ),
    "due_date": (
        ("When is it due?", "When is the payment due?", "When must it be paid?", "By when must I pay?"),
        ("When does it have to be paid?", "By when is payment due?"),
    ),
    "date": (
        ("When was it issued?", "What date is on it?", "When is it from?", "What date does it bear?"),
        ("What date was it issued?", "Which date is on it?"),
    ),
    "invoice_number": (
        ("Which invoice is this?", "What number does the invoice have?", "What is the number of this invoice?"),
        ("What is this invoice's number?",),
    ),
    "phone": (
        (
            "Which number can I call?", "What number do I call?", "What number can I reach them at?",
            "Under which number can they be reached?", "Which number is to be called?", "Whom do I call?",
        ),
        ("Which number should I call?",),
    ),
    "cashier": (("Who was the cashier?", "Who served?"), ("Who is the cashier?",)),
    "time": (("What time is it?", "At what time was it?"), ("What time was it?",)),
    "tax": (("How much is the tax?", "How much tax is there?"), ("How much tax must be paid?",)),
    "payment": (("How was it paid?", "How did they pay?"), ("How was this paid?",)),
    "signature": (("Who signed?", "Who signed it?"), ("Who has signed it?",)),
    "expires": (("When does it expire?", "Until when is it valid?"), ("When will it expire?",)),
    "dob": (("When was the person born?",), ("When were they born?",)),
    "name": (("Who is it?", "What is the person's name?"), ("What is the person called?",)),
    "item": (
        (
            "What is the price of {}?", "How much is the {}?", "How much does the {} cost?", "price of {}",
            "What does the {} cost?", "How much was {}?", "What did {} cost?", "How much for {}?", "{} price",
            "What is the price for {}?", "What is the {} price?", "cost of the {}", "Tell me what {} costs.",
            "How much does {} cost?", "How much do they ask for {}?", "What's the price of {}?", "{}: how much?",
            "What was the cost of the {}?", "How much are {}?", "What must I pay for {}?",
        ),
        ("What is the cost of {}?", "How much is {}?"),
    ),
}  # fmt: skip

READ = Wording(
    "Read the text.",
    (
        "What does it say?", "Transcribe the text.", "What is written here?", "Read all the text.", "Read it.",
        "What does the text say?", "Write down the text.", "What text is in the image?", "Please read the text.",
        "Read the text in the image.", "Transcribe the image.", "What is the text?", "Read everything.",
    ),
    ("Please transcribe the text.", "What is written in the image?", "Read what it says.", "Copy out the text."),
)  # fmt: skip

CAPTION = Wording(
    "Describe the image.",
    (
        "What is in the image?", "Caption this image.", "Describe the picture.", "What do you see?",
        "Describe this image.", "What is shown?", "Write a caption.", "What does the image show?", "Give a caption.",
        "What can you see in the picture?", "Tell me what is in the picture.", "Describe what you see.",
        "Describe the scene.", "What is in this picture?",
    ),
    ("What does the picture show?", "Please describe the image.", "Give me a caption.", "What is in the picture?"),
)  # fmt: skip

KIND = Wording(
    "What kind of document is this?",
    ("What type of document is this?", "What is this?", "What document is this?", "Which kind of document is it?"),
    ("What sort of document is this?", "Which type of document is this?"),
)


def cased(kit: Kit, question: str) -> str:
    """The question as people type it: often as it is, often in lower case, with or without its last sign."""
    chance = kit.rng.random()
    if chance < 0.5:
        return question[0].upper() + question[1:]
    if chance < 0.72:
        return question.lower()
    if chance < 0.88:
        return question.lower().rstrip(".?")
    if chance < 0.96:
        return (question[0].upper() + question[1:]).rstrip(".?")
    return question.upper() if len(question) < 28 else question


def ask_field(kit: Kit, key: str, names: tuple[str, ...]) -> str:
    """A question for a field by one of its names, or one that goes without the name."""
    if key in SPECIAL and (key == "item" or kit.chance(0.3)):
        return cased(kit, kit.pick(SPECIAL[key][kit.held_out_phrases]).format(kit.pick(names)))
    return cased(kit, FIELD.choose(kit).format(kit.pick(names)))


def ask_fact(kit: Kit, fact: Fact) -> Question:
    return Question(ask_field(kit, fact.key, fact.names), fact.value)


def ask(kit: Kit, wording: Wording, answer: str) -> Question:
    return Question(cased(kit, wording.choose(kit)), answer)
