"""Makes ``tokenizer.json``: byte-level BPE over what the generators write, and the special tokens of Qwen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from zellige.data.samples.documents import document_sheet
from zellige.data.samples.kit import training_kit
from zellige.data.samples.lines import draw_text
from zellige.data.samples.questions import CAPTION, READ, ask
from zellige.data.samples.scene_drawing import draw_scene
from zellige.engine.demo.architecture import SPECIAL_TOKENS, TEXT_TOKENS

#: How text is cut before merges: the Qwen2 rule, every digit for itself.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus(samples: int = 3000) -> Iterator[str]:
    """Questions, answers and texts as training draws them."""
    kit = training_kit("tokenizer")
    for _ in range(samples):
        scene = draw_scene(kit, 64, 64)
        yield scene.caption
        yield ask(kit, CAPTION, "").text
        yield from (f"{q.text}\n{q.answer}" for q in scene.questions)
        sheet = document_sheet(kit, 384, 384)
        yield from (f"{q.text}\n{q.answer}" for q in sheet.questions)
        yield sheet.text or ""
        yield draw_text(kit, 384, 40).text or ""
        yield ask(kit, READ, "").text
        yield " ".join(kit.word() for _ in range(12))
        yield "user\nassistant\nuser\nassistant\n"


def make_tokenizer(samples: int = 3000) -> Tokenizer:
    """A tokenizer of TEXT_TOKENS byte-level entries; the special tokens take the ids after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_TOKENS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(samples), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the tokenizer of the small checkpoint.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model" / "tokenizer.json")
    out: Path = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(out))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
