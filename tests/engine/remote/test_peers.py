"""Servers that are not ours. Each test is skipped where its server is not installed.

``pip install 'llama-cpp-python[server]' gguf`` and ``pip install torchvision`` bring what the others need.
"""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import ServerProcess
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from zellige.data.samples import draw_scene, held_out_kit
from zellige.engine.api import Answer, Engine, RequestRejected, Sampling, ask
from zellige.engine.connect import DEMO_MODEL, EngineSpec, open_engine


def tiny_llama(path: Path) -> None:
    """A random Llama of two layers that spells bytes."""
    import gguf

    random = np.random.default_rng(0)
    dim, hidden, heads, layers = 64, 128, 4, 2
    control = ["<unk>", "<s>", "</s>"]
    tokens = [*control, *(f"<0x{i:02X}>" for i in range(256)), *"▁abcdefghijklmnopqrstuvwxyz"]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 27
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(512)
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(dim // heads)
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * len(tokens))
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def weights(name: str, *shape: int) -> None:
        w.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.3).astype(np.float32))

    weights("token_embd", len(tokens), dim)
    weights("output", len(tokens), dim)
    w.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"blk.{i}.{name}", dim, dim)
        weights(f"blk.{i}.ffn_gate", hidden, dim)
        weights(f"blk.{i}.ffn_up", hidden, dim)
        weights(f"blk.{i}.ffn_down", dim, hidden)
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{name}.weight", np.ones(dim, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def random_llama(folder: Path) -> Path:
    """A random Llama of two layers, in Hugging Face layout, with the tokenizer and the template that ship."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((DEMO_MODEL / name).read_bytes())
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size, dim, hidden, layers = tokens.get_vocab_size(), 64, 128, 2
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": dim}
    config |= {"intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    config |= {"max_position_embeddings": 256, "eos_token_id": tokens.token_to_id("<|im_end|>")}
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (size, dim), "lm_head": (size, dim), "model.norm": (dim,)}
    for i in range(layers):
        shapes |= {f"model.layers.{i}.self_attn.{name}_proj": (dim, dim) for name in "qkvo"}
        shapes |= {f"model.layers.{i}.mlp.{name}_proj": (hidden, dim) for name in ("gate", "up")}
        shapes |= {f"model.layers.{i}.mlp.down_proj": (dim, hidden)}
        shapes |= {f"model.layers.{i}.{name}_layernorm": (dim,) for name in ("input", "post_attention")}
    weights = {
        f"{name}.weight": (random.standard_normal(shape) * 0.3 if len(shape) > 1 else np.ones(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    # Words only: of bytes that are no UTF-8 the server says other things when it streams.
    weights["lm_head.weight"][[not (tokens.id_to_token(i) or "").isascii() for i in range(size)]] = 0
    save_file(weights, folder / "model.safetensors")
    return folder


async def streamed(engine: Engine, request: Any) -> tuple[str, Answer]:
    deltas = [delta async for delta in engine.stream(request)]
    answer = deltas[-1].answer
    assert answer is not None
    return "".join(d.text for d in deltas), answer


@pytest.mark.skipif(not (find_spec("llama_cpp") and find_spec("gguf")), reason="no llama-cpp-python, or no gguf")
def test_llama_cpp_pythons_server_is_driven(go: Any, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "tiny.gguf")
    command = ["-m", "llama_cpp.server", "--model", str(tmp_path / "tiny.gguf"), "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--n_ctx", "256", "--n_threads", "1"]
    # Letters only: of bytes that are no UTF-8 the server says other things when it streams.
    sampling = Sampling(max_tokens=12, logit_bias=tuple((token, -100.0) for token in (0, 1, *range(3, 259))))

    async def work(url: str) -> None:
        engine = open_engine(url)
        try:
            assert (await engine.identity()).name.endswith("tiny.gguf")
            texts = [f"{word} {n}" for word in ("abc", "hello", "zebra") for n in range(4)]
            answers = await asyncio.gather(*(engine.answer(ask(t, sampling=sampling, run_id="r")) for t in texts))
            for text, answer in zip(texts, answers, strict=True):
                assert answer.finish_reason in ("length", "stop")
                assert answer.text.replace(" ", "a").isalpha()
                assert answer.usage.completion_tokens > 0
                assert answer.usage.prompt_tokens > 0
                assert answer.mean_logprob is not None
                assert answer.mean_logprob < 0
                pieces, again = await streamed(engine, ask(text, sampling=sampling))
                assert pieces == again.text == answer.text, "greedy, so the same again"
            assert len({a.text for a in answers}) > 1
            assert (await engine.meter("r")).requests == len(texts)
            with pytest.raises(RequestRejected):
                await engine.answer(ask("long " * 400, sampling=sampling))
        finally:
            await engine.close()

    with ServerProcess(command, tmp_path / "log", ready="/v1/models") as server:
        go(work(server.url))


@pytest.mark.skipif(not find_spec("accelerate"), reason="no accelerate")
def test_transformers_serve_is_driven(go: Any, tmp_path: Path) -> None:
    """A server of another make, asked in text alone: pictures take torchvision too."""
    command = ["-m", "transformers.cli.transformers", "serve", str(random_llama(tmp_path / "model"))]
    command += ["--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "float32"]
    sampling = Sampling(max_tokens=8)

    async def work(url: str) -> None:
        engine = open_engine(url)
        try:
            assert (await engine.identity()).name.endswith("model")
            requests = [ask(word, sampling=sampling, run_id="r") for word in ("abc", "hello", "zebra", "Total?")]
            answers = await asyncio.gather(*map(engine.answer, requests))
            for request, answer in zip(requests, answers, strict=True):
                assert answer.finish_reason in ("length", "stop")
                assert 0 < answer.usage.completion_tokens <= 8
                assert answer.usage.prompt_tokens > 0
                pieces, again = await streamed(engine, request)
                assert pieces == again.text == answer.text, "greedy, so the same again"
            assert len({a.text for a in answers}) > 1
            assert (await engine.meter("r")).requests == 2 * len(requests)
        finally:
            await engine.close()

    with ServerProcess(command, tmp_path / "log") as server:
        go(work(server.url))


@pytest.mark.skipif(
    not (find_spec("torchvision") and find_spec("accelerate")), reason="no torchvision, or no accelerate"
)
def test_transformers_serve_gives_the_answers_of_our_own_engine(go: Any, tmp_path: Path) -> None:
    """The same checkpoint behind an independent server: the same words, streamed or not."""
    command = ["-m", "transformers.cli.transformers", "serve", str(DEMO_MODEL), "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--device", "cpu", "--dtype", "float32"]
    kit = held_out_kit("asked of two servers")
    scenes = [draw_scene(kit, 224, 160) for _ in range(4)]
    requests = [ask("Describe the image.", s.pixels, sampling=Sampling(max_tokens=64)) for s in scenes]

    async def work(url: str) -> None:
        engine, local = open_engine(EngineSpec(str(DEMO_MODEL), urls=(url,))), open_engine(EngineSpec())
        try:
            assert (await engine.identity()).vision == (await local.identity()).vision
            expected = await asyncio.gather(*map(local.answer, requests))
            answers = await asyncio.gather(*map(engine.answer, requests))
            assert [a.text for a in answers] == [a.text for a in expected]
            assert [a.usage.prompt_tokens for a in answers] == [a.usage.prompt_tokens for a in expected]
            pieces, answer = await streamed(engine, requests[0])
            assert pieces == answer.text == expected[0].text
        finally:
            await engine.close()
            await local.close()

    with ServerProcess(command, tmp_path / "log") as server:
        go(work(server.url))
