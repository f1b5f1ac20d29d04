"""From messages to what a model takes: token ids, positions, and resized images with their content keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from zellige.engine.api import ImagePart, Message, Request, RequestRejected, TextPart, VisionBudget
from zellige.engine.checkpoint import Checkpoint, CheckpointError
from zellige.engine.template import ChatTemplate

#: Stands inside special-token spellings of a user's text until it is encoded; chosen anew where a text contains it.
SHIELDS = ("\ue000", "\uf8ff", "\U000f0000", "\U0010fffd")


@dataclass(frozen=True)
class ImageRules:
    """How the checkpoint's image processor resizes and normalises."""

    budget: VisionBudget
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale: float

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> ImageRules:
        c = checkpoint.json("preprocessor_config.json")
        size = c.get("size") or {}
        try:
            rules = cls(
                budget=VisionBudget(
                    patch=c["patch_size"],
                    merge=c["merge_size"],
                    min_pixels=c.get("min_pixels") or size["shortest_edge"],
                    max_pixels=c.get("max_pixels") or size["longest_edge"],
                ),
                mean=tuple(c["image_mean"]),
                std=tuple(c["image_std"]),
                rescale=c.get("rescale_factor", 1 / 255),
            )
        except KeyError as error:
            raise CheckpointError(f"preprocessor_config.json: no {error}; is it a Qwen-VL checkpoint?") from error
        if c.get("resample", 3) != 3:
            raise CheckpointError(f"preprocessor_config.json: resample {c['resample']} is not supported (3 is bicubic)")
        return rules


@dataclass(frozen=True, eq=False)
class PromptImage:
    """One image of a prompt: resized ``pixels`` (h, w, 3) uint8, where its tokens stand, and what it is known by.

    ``key`` is the sha256 of the pixels as the model sees them and of the rules that made them: equal keys may share an
    encoding, whatever name a client gave the image.
    """

    key: str
    pixels: NDArray[np.uint8]
    start: int
    tokens: int
    grid: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Prompt:
    """``positions`` (n, 3) int64: time, row and column of each token; the first generated one stands at ``next``."""

    tokens: list[int]
    positions: NDArray[np.int64]
    next: int
    images: tuple[PromptImage, ...]

    @property
    def image_tokens(self) -> int:
        return sum(i.tokens for i in self.images)


class Processor:
    """The CPU half of a checkpoint. Safe to use from several threads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.folder / "tokenizer.json"
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"{path}: cannot be read as a tokenizer ({error}); copy the file again") from error
        # Special tokens are cut out of the rendered template below; whatever is encoded is plain text.
        self.tokenizer.encode_special_tokens = True
        self.rules = ImageRules.load(checkpoint)
        self.template = ChatTemplate.load(checkpoint)
        self._special = {
            str(t.content): int(i) for i, t in self.tokenizer.get_added_tokens_decoder().items() if t.special
        }
        longest_first = sorted(self._special, key=len, reverse=True)
        self._special_text = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.image_token = _image_token(checkpoint, self._special)

    @property
    def budget(self) -> VisionBudget:
        return self.rules.budget

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._special.values())

    def prepare(self, request: Request) -> Prompt:
        """Tokens, positions and images of a request; raises RequestRejected with what is wrong with it."""
        images = [p for m in request.messages for p in m.parts if isinstance(p, ImagePart)]
        if not any(m.parts for m in request.messages) or not (request.templated or _has_text(request.messages)):
            raise RequestRejected("the request has no text and no image")
        ids = self.encode(self.render(request.messages, templated=request.templated))
        if ids.count(self.image_token) != len(images):
            raise RequestRejected(
                f"the chat template made {ids.count(self.image_token)} places for {len(images)} images"
            )
        return self._lay_out(ids, [self._resize(i.pixels) for i in images])

    def render(self, messages: Sequence[Message], *, templated: bool = True) -> tuple[str, str]:
        """The prompt's text, and the character that shields special-token spellings in what users wrote."""
        texts = "".join(p.text for m in messages for p in m.parts if not isinstance(p, ImagePart))
        try:
            texts.encode()
        except UnicodeEncodeError as error:
            raise RequestRejected(f"the text is no valid Unicode ({error.reason}); send it in UTF-8") from error
        shield = next((s for s in SHIELDS if s not in texts), None)
        if shield is None:
            raise RequestRejected("the text holds four private-use characters that are needed to keep it apart")

        def shielded(text: str) -> str:
            return self._special_text.sub(lambda m: m[0][0] + shield + m[0][1:], text)

        return self.template.render(messages, shielded) if templated else shielded(texts), shield

    def encode(self, rendered: tuple[str, str]) -> list[int]:
        """Token ids; special tokens come from the template alone, never from a user's text."""
        text, shield = rendered
        ids: list[int] = []
        for piece in self._special_text.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self.tokenizer.encode(piece.replace(shield, ""), add_special_tokens=False).ids
        return ids

    def _resize(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width = pixels.shape[:2]
        try:
            size = self.budget.resized(width, height)
        except ValueError as error:
            raise RequestRejected(str(error)) from error
        if size == (width, height):
            return pixels
        return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))

    def _lay_out(self, ids: list[int], images: list[NDArray[np.uint8]]) -> Prompt:
        """Widen each image's place to its tokens and number all positions (M-RoPE).

        Text advances time, row and column together. An image's tokens share one time; rows and columns count from
        there; the text behind it goes on after the longer side.
        """
        tokens: list[int] = []
        spans: list[NDArray[np.int64]] = []
        placed: list[PromptImage] = []
        at = 0
        left = iter(images)
        begin = 0
        for end in [i for i, t in enumerate(ids) if t == self.image_token] + [len(ids)]:
            text = ids[begin:end]
            spans.append(np.repeat(np.arange(at, at + len(text))[:, None], 3, axis=1))
            tokens += text
            at += len(text)
            begin = end + 1
            if end == len(ids):
                break
            pixels = next(left)
            cell, patch = self.budget.cell, self.budget.patch
            rows, columns = pixels.shape[0] // cell, pixels.shape[1] // cell
            row, column = np.divmod(np.arange(rows * columns), columns)
            spans.append(np.stack((np.full(rows * columns, at), at + row, at + column), axis=1))
            placed.append(
                PromptImage(
                    key=self._key(pixels),
                    pixels=pixels,
                    start=len(tokens),
                    tokens=rows * columns,
                    grid=(pixels.shape[0] // patch, pixels.shape[1] // patch),
                )
            )
            tokens += [self.image_token] * (rows * columns)
            at += max(rows, columns)
        return Prompt(tokens, np.concatenate(spans).astype(np.int64), at, tuple(placed))

    def _key(self, pixels: NDArray[np.uint8]) -> str:
        digest = hashlib.sha256(repr((pixels.shape, self.rules)).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return digest.hexdigest()


def _has_text(messages: Sequence[Message]) -> bool:
    return any(isinstance(p, TextPart) and p.text for m in messages for p in m.parts)


def _image_token(checkpoint: Checkpoint, special: dict[str, int]) -> int:
    token: Any = checkpoint.config.get("image_token_id")
    if token not in special.values():
        raise CheckpointError(
            f"config.json: image_token_id {json.dumps(token)} is not a special token of tokenizer.json"
        )
    return int(token)
