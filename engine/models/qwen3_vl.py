"""Qwen3-VL, dense and mixture-of-experts (Qwen3-VL technical report; layer names as released checkpoints have them).

T tokens of a step, H hidden, V vocabulary. Vision embeddings take the places of the image tokens, and the tower's
deepstack layers are added to the same places after the first decoder layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from zellige.engine.cache import FullKV
from zellige.engine.checkpoint import CheckpointError, Weights
from zellige.engine.layers.attention import GroupedQueryAttention
from zellige.engine.layers.experts import FeedForward, GatedMLP, MixtureOfExperts
from zellige.engine.layers.norms import RMSNorm
from zellige.engine.layers.projection import Product, product
from zellige.engine.layers.rotary import MRope
from zellige.engine.layers.vision import VisionConfig, VisionTower
from zellige.engine.layers.watch import Watch, unwatched
from zellige.engine.models.batch import ForwardBatch

#: config.json's model_type → whether its decoder layers may hold experts.
FAMILIES = {"qwen3_vl": False, "qwen3_vl_moe": True}


@dataclass(frozen=True)
class TextConfig:
    """Sizes of the decoder, as config.json names them."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    theta: float
    sections: tuple[int, int, int]
    context: int
    tied: bool
    experts: int = 0
    top_k: int = 0
    expert_inner: int = 0
    dense_layers: frozenset[int] = frozenset()


def parse_config(config: dict[str, Any]) -> tuple[TextConfig, VisionConfig]:
    """Sizes from config.json; raises CheckpointError that names what is missing or not supported."""
    try:
        return _text_config(config), _vision_config(config["vision_config"])
    except KeyError as error:
        raise CheckpointError(f"config.json: no {error}; is it a Qwen3-VL checkpoint?") from error


def _rope(section: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters, which older files keep as rope_scaling and a rope_theta beside it."""
    rope = dict(section.get("rope_parameters") or section.get("rope_scaling") or {})
    if "rope_theta" in section:
        rope.setdefault("rope_theta", section["rope_theta"])
    return rope


def _text_config(config: dict[str, Any]) -> TextConfig:
    t = config["text_config"]
    rope = _rope(t)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CheckpointError(f"config.json: rope_type {rope['rope_type']} is not supported")
    if t.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"config.json: hidden_act {t['hidden_act']} is not supported")
    layers = t["num_hidden_layers"]
    moe: dict[str, Any] = {}
    if FAMILIES[config["model_type"]]:
        step = t.get("decoder_sparse_step", 1)
        dense = set(t.get("mlp_only_layers") or ()) | {i for i in range(layers) if (i + 1) % step}
        moe = {
            "experts": t["num_experts"] if "num_experts" in t else t["num_local_experts"],
            "top_k": t["num_experts_per_tok"],
            "expert_inner": t["moe_intermediate_size"],
            "dense_layers": frozenset(dense),
        }
    return TextConfig(
        vocab=t["vocab_size"],
        hidden=t["hidden_size"],
        inner=t["intermediate_size"],
        layers=layers,
        heads=t["num_attention_heads"],
        kv_heads=t.get("num_key_value_heads") or t["num_attention_heads"],
        head_dim=t.get("head_dim") or t["hidden_size"] // t["num_attention_heads"],
        eps=t["rms_norm_eps"],
        bias=bool(t.get("attention_bias", False)),
        theta=float(rope["rope_theta"]),
        sections=tuple(rope.get("mrope_section", (24, 20, 20))),
        context=t["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", False)),
        **moe,
    )


def _vision_config(v: dict[str, Any]) -> VisionConfig:
    if v.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise CheckpointError(f"config.json: vision hidden_act {v['hidden_act']} is not supported")
    return VisionConfig(
        depth=v["depth"],
        hidden=v["hidden_size"],
        inner=v["intermediate_size"],
        heads=v["num_heads"],
        patch=v["patch_size"],
        temporal_patch=v["temporal_patch_size"],
        merge=v["spatial_merge_size"],
        out_hidden=v["out_hidden_size"],
        positions=v["num_position_embeddings"],
        deepstack=tuple(v["deepstack_visual_indexes"]),
        theta=float(_rope(v).get("rope_theta", 10_000.0)),
    )


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    norm1: RMSNorm
    attention: GroupedQueryAttention
    norm2: RMSNorm
    feed_forward: FeedForward

    @classmethod
    def load(cls, w: Weights, name: str, c: TextConfig, index: int) -> DecoderLayer:
        feed_forward: FeedForward
        if c.experts and index not in c.dense_layers:
            feed_forward = MixtureOfExperts.load(
                w, f"{name}.mlp", count=c.experts, top_k=c.top_k, hidden=c.hidden, inner=c.expert_inner
            )
        else:
            feed_forward = GatedMLP.load(w, f"{name}.mlp", c.hidden, c.inner)
        return cls(
            norm1=RMSNorm.load(w, f"{name}.input_layernorm", c.hidden, c.eps),
            attention=GroupedQueryAttention.load(
                w,
                f"{name}.self_attn",
                hidden=c.hidden,
                heads=c.heads,
                kv_heads=c.kv_heads,
                head_dim=c.head_dim,
                eps=c.eps,
                bias=c.bias,
            ),
            norm2=RMSNorm.load(w, f"{name}.post_attention_layernorm", c.hidden, c.eps),
            feed_forward=feed_forward,
        )


class Qwen3VL:
    """The whole model: ``see`` turns images into embeddings, ``forward`` tokens into logits."""

    def __init__(self, w: Weights, text: TextConfig, vision: VisionConfig) -> None:
        if vision.out_hidden != text.hidden:
            raise CheckpointError(f"config.json: vision out_hidden_size {vision.out_hidden} is not {text.hidden}")
        self.text = text
        self.tower = VisionTower(w, "model.visual", vision)
        self.embed = w.take("model.language_model.embed_tokens.weight", text.vocab, text.hidden)
        self.layers = [DecoderLayer.load(w, f"model.language_model.layers.{i}", text, i) for i in range(text.layers)]
        self.norm = RMSNorm.load(w, "model.language_model.norm", text.hidden, text.eps)
        if text.tied:
            self.head: Product = product(self.embed)
            w.ignore("lm_head.weight")
        else:
            self.head = product(w.matrix("lm_head", text.vocab, text.hidden))
        self.rope = MRope(text.head_dim, text.theta, text.sections, w.device)

    @property
    def capturable(self) -> bool:
        """Whether a step waits for nothing on the host, so that a graph may hold it."""
        return all(layer.feed_forward.capturable for layer in self.layers)

    def keeps(self) -> list[FullKV]:
        """What each decoder layer keeps of the past."""
        return [FullKV(self.text.kv_heads, self.text.head_dim) for _ in self.layers]

    def see(self, patches: Tensor, sizes: Sequence[tuple[int, int]], watch: Watch = unwatched) -> list[Tensor]:
        """Embeddings of images (n, H) for the decoder's input, then one tensor for each deepstack layer."""
        merged, deep = self.tower(patches, sizes, watch)
        return [merged, *deep]

    def forward(self, batch: ForwardBatch, caches: Sequence[Tensor], watch: Watch = unwatched) -> Tensor:
        """Logits (R, V) of the rows that the batch wants; keys and values go to ``caches``, one a layer."""
        x = F.embedding(batch.tokens, self.embed)  # (T, H)
        if batch.image_rows is not None:
            x.index_copy_(0, batch.image_rows, batch.image_layers[0])
        x = watch("token embedding", x)
        cos, sin = self.rope(batch.positions)  # (T, D/2)
        #: What a layer's second half gave and the next norm adds on its way.
        more: Tensor | None = None
        for i, layer in enumerate(self.layers):
            normed, x = layer.norm1.after(x, more)
            normed, x = layer.norm2.after(x, layer.attention(normed, cos, sin, caches[i], batch.layout))
            more = layer.feed_forward(normed)
            deep = i + 1 < len(batch.image_layers)
            if deep or watch is not unwatched:
                x, more = x + more, None
                if deep and batch.image_rows is not None:
                    x.index_add_(0, batch.image_rows, batch.image_layers[i + 1])
                x = watch(f"decoder layer {i}", x)
        wanted = [t.index_select(0, batch.logit_rows) for t in (x, more) if t is not None]
        return watch("logits", self.head(self.norm.after(wanted[0], wanted[1] if more is not None else None)[0]))


def load_model(w: Weights, config: dict[str, Any]) -> Qwen3VL:
    """Build the family that config.json names."""
    if config.get("model_type") not in FAMILIES:
        raise CheckpointError(
            f"config.json: model_type {config.get('model_type')!r} is not one of {', '.join(FAMILIES)}"
        )
    text, vision = parse_config(config)
    return Qwen3VL(w, text, vision)
