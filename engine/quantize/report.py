"""What quantising cost, on held-out samples: how often the likeliest token is the same, KL divergence, perplexity.

At every place of a right answer, the prompt and the answer so far given, a model is compared with the unquantised one
in float32. Rounding that one to bfloat16 changes something as well: that is the noise floor, measured beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from zellige.engine.checkpoint import Checkpoint
from zellige.engine.demo.calibration import held_out_cases
from zellige.engine.quantize.passages import Opened, Step


@dataclass(frozen=True)
class Compared:
    """Over ``tokens``: share of equal likeliest tokens, mean KL(reference ‖ model) in nats, ratio of perplexities."""

    tokens: int
    agreement: float
    kl: float
    perplexity_ratio: float


def compare(reference: Sequence[Tensor], given: Sequence[Tensor], answers: Sequence[Tensor]) -> Compared:
    """Logits (n, V) of each passage and the tokens (n,) that are right."""
    tokens = same = 0
    kl = surprise = 0.0
    for x, y, right in zip(reference, given, answers, strict=True):
        p, q = x.double().log_softmax(-1), y.double().log_softmax(-1)
        tokens += len(right)
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        kl += float((p.exp() * (p - q)).sum())
        said = right.unsqueeze(-1)
        surprise += float((p.gather(-1, said) - q.gather(-1, said)).sum())
    return Compared(tokens, same / tokens, kl / tokens, math.exp(surprise / tokens))


def quality(
    source: Path, quantized: Path, samples: int, device: str | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The quantised folder and the source in bfloat16, each against the source in float32, one loaded at a time."""
    tell(f"comparing on {samples} held-out samples")
    unquantized = Opened(source, device, "float32")
    passages = unquantized.passages(held_out_cases(samples))
    steps = [unquantized.step(p) for p in passages]
    reference = [unquantized.logits(s).cpu() for s in steps]
    del unquantized

    def logits(folder: Path, dtype: str, steps: list[Step] | None) -> list[Tensor]:
        """``steps``: with what the tower gives, where it gives the same."""
        opened = Opened(folder, device, dtype)
        return [opened.logits(opened.step(p) if steps is None else steps[i]).cpu() for i, p in enumerate(passages)]

    answers = [p.answer for p in passages]
    same_tower = steps if not _tower_is_quantized(quantized) else None
    found = {
        "quantized": compare(reference, logits(quantized, "float32", same_tower), answers),
        "noise_floor": compare(reference, logits(source, "bfloat16", None), answers),
    }
    return {"samples": samples, **{name: asdict(compared) for name, compared in found.items()}}


def _tower_is_quantized(folder: Path) -> bool:
    for path in Checkpoint(folder).shards:
        with safe_open(path, framework="pt") as file:
            if any(n.startswith("model.visual.") and n.endswith(".weight_packed") for n in file.keys()):  # noqa: SIM118
                return True
    return False
