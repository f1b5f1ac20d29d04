"""The shape of the small checkpoint: sizes, special tokens, the image rule, and its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zellige.engine.api import VisionBudget

PATCH, MERGE = 16, 2
BUDGET = VisionBudget(patch=PATCH, merge=MERGE, min_pixels=8 * 32 * 32, max_pixels=448 * 448)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCABULARY = 512
#: Byte-level BPE entries; the special tokens follow them.
TEXT_TOKENS = VOCABULARY - len(SPECIAL_TOKENS)
END_OF_TEXT, IM_START, IM_END, VISION_START, VISION_END, VISION_PAD, IMAGE_PAD, VIDEO_PAD = range(
    TEXT_TOKENS, VOCABULARY
)


@dataclass(frozen=True)
class Architecture:
    """Sizes of a Qwen3-VL-MoE; the defaults are the checkpoint that ships."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    experts: int = 8
    experts_per_token: int = 2
    expert_width: int = 192
    rope_theta: float = 10000.0
    rope_sections: tuple[int, int, int] = (12, 10, 10)
    vision_hidden: int = 256
    vision_layers: int = 8
    vision_heads: int = 4
    vision_width: int = 1024
    vision_theta: float = 10000.0
    #: Side of the square of learned position embeddings.
    position_side: int = 28
    deepstack: tuple[int, ...] = (2,)

    def configuration(self) -> dict[str, Any]:
        """``config.json`` of the checkpoint; experts are counted under both names that readers look for."""
        text = {
            "model_type": "qwen3_vl_moe_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": END_OF_TEXT,
            "eos_token_id": IM_END,
            "pad_token_id": END_OF_TEXT,
            "decoder_sparse_step": 1,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": 2 * self.hidden,
            "max_position_embeddings": 4096,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.expert_width,
            "norm_topk_prob": True,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_local_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "output_router_logits": False,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": list(self.rope_sections),
                "rope_theta": self.rope_theta,
                "rope_type": "default",
            },
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCABULARY,
        }
        vision = {
            "model_type": "qwen3_vl_moe_vision",
            "deepstack_visual_indexes": list(self.deepstack),
            "depth": self.vision_layers,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": self.vision_hidden,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": self.vision_width,
            "num_heads": self.vision_heads,
            "num_position_embeddings": self.position_side**2,
            "out_hidden_size": self.hidden,
            "patch_size": PATCH,
            "rope_parameters": {"rope_theta": self.vision_theta, "rope_type": "axial"},
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        }
        return {
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            "dtype": "bfloat16",
            "tie_word_embeddings": False,
            "image_token_id": IMAGE_PAD,
            "video_token_id": VIDEO_PAD,
            "vision_start_token_id": VISION_START,
            "vision_end_token_id": VISION_END,
            "text_config": text,
            "vision_config": vision,
        }
