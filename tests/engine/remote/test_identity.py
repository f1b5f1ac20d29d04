"""Who answers: from our own server all of it, of another its name; addresses and keys."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from remotes import QUICK, remote
from standin import StandIn
from test_pool import own_model

from zellige.engine.api import EngineError, EngineUnavailable, EngineUnfit, ModelIdentity, VisionBudget, ask
from zellige.engine.connect import DEMO_MODEL, EngineSpec, open_engine, split_urls
from zellige.engine.remote.client import RemoteEngine
from zellige.engine.remote.config import KEY, KEY_FILE, Address, api_key
from zellige.engine.remote.identity import assumed_identity, served_by

NOWHERE = Address("http://h/v1", None)


def of(model: dict[str, Any]) -> ModelIdentity:
    return served_by({"data": [model]}, NOWHERE, assumed_identity(QUICK, None)).identity


def test_our_own_server_says_everything() -> None:
    served = served_by({"data": [own_model("f1", "ours")]}, NOWHERE, assumed_identity(QUICK, None))
    assert served.ours
    assert served.identity == ModelIdentity(
        "ours", "f1", "float32", VisionBudget(16, 2, 1024, 65536), 4096, follows_instructions=False, lines_at_once=2
    )


def test_another_server_is_known_by_the_name_of_its_model_wherever_and_whenever_it_runs() -> None:
    a = of({"id": "qwen", "created": 1, "max_model_len": 32768})
    elsewhere = served_by(
        {"data": [{"id": "qwen", "created": 2}]}, Address("http://other:1/v1", None), assumed_identity(QUICK, None)
    ).identity
    assert a.fingerprint == elsewhere.fingerprint
    assert len(a.fingerprint) == 16
    assert a.fingerprint != of({"id": "other"}).fingerprint
    assert a.fingerprint != of({"id": "qwen", "root": "/models/qwen-tuned"}).fingerprint
    assert (a.name, a.dtype, a.max_context) == ("qwen", "unknown", 32768)
    assert a.vision == QUICK.vision
    assert a.follows_instructions


def test_a_checkpoint_folder_says_what_another_server_leaves_out(tmp_path: Path) -> None:
    for name in ("preprocessor_config.json", "zellige.json"):
        (tmp_path / name).write_bytes((DEMO_MODEL / name).read_bytes())
    told = assumed_identity(QUICK, str(tmp_path))
    assert told.vision == VisionBudget(16, 2, 8192, 200704)
    assert not told.follows_instructions
    assert told.lines_at_once == 1
    with pytest.raises(EngineError, match="--model names a checkpoint folder"):
        assumed_identity(QUICK, str(tmp_path / "nowhere"))


def test_of_several_models_the_address_names_one(go: Any) -> None:
    async def work() -> str:
        server = await StandIn(models=[{"id": "a/b"}, {"id": "c"}]).start()
        async with remote(server) as engine:
            with pytest.raises(EngineUnavailable, match=r"serves 2 models .*#MODEL"):
                await engine.identity()
        async with remote(f"{server.url}#c") as engine:
            return (await engine.identity()).name

    assert go(work()) == "c"


def test_a_model_that_is_not_among_those_listed_is_refused(go: Any) -> None:
    async def work() -> None:
        server = await StandIn(models=[{"id": "a/b"}, {"id": "c"}]).start()
        async with remote(f"{server.url}#d") as engine:
            with pytest.raises(EngineUnfit, match="has no model 'd'; it serves a/b, c"):
                await engine.identity()

    go(work())
    unlisted = served_by({"data": []}, Address("http://h/v1", "d"), assumed_identity(QUICK, None))
    assert unlisted.name == "d"


@pytest.mark.parametrize("models", [{}, {"data": 3}, [], {"data": []}], ids=str)
def test_what_is_no_list_of_models_is_told(models: Any) -> None:
    with pytest.raises(EngineUnavailable, match="http://h/v1"):
        served_by(models, NOWHERE, assumed_identity(QUICK, None))


def test_a_wrong_key_is_told_with_the_name_of_the_variable(go: Any) -> None:
    async def work() -> str:
        server = await StandIn(key="right").start()
        async with remote(server, key="right") as engine:
            await engine.answer(ask("x"))
        async with remote(server, key="wrong") as engine:
            with pytest.raises(EngineUnavailable) as caught:
                await engine.identity()
        return str(caught.value)

    message = go(work())
    assert "send a valid key" in message
    assert KEY in message
    assert "wrong" not in message


@pytest.mark.parametrize(
    ("url", "base", "model"),
    [
        ("http://h:8000/v1", "http://h:8000/v1", None),
        ("http://h:8000", "http://h:8000/v1", None),
        ("https://h/api/v1/", "https://h/api/v1", None),
        ("http://[::1]:80/v1#org%2Fname", "http://[::1]:80/v1", "org/name"),
        ("http://h/v1#org/name", "http://h/v1", "org/name"),
    ],
)
def test_addresses(url: str, base: str, model: str | None) -> None:
    assert Address.parse(url) == (base, model)


@pytest.mark.parametrize("url", ["h:8000", "ftp://h/v1", "http://", "http://h:99999/v1", "http://h:x/v1"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(EngineError, match="give http://HOST:PORT/v1"):
        Address.parse(url)


@pytest.mark.parametrize("url", ["http://me:hunter2@h/v1", "http://h/v1?key=hunter2"])
def test_a_key_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(EngineError, match=KEY) as caught:
        Address.parse(url)
    assert "hunter2" not in str(caught.value)


def test_the_key_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert api_key() is None
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))
    with pytest.raises(EngineError, match="cannot be read"):
        api_key()
    (tmp_path / "key").write_text("from-file\n")
    assert api_key() == "from-file"
    monkeypatch.setenv(KEY, "from-variable")
    assert api_key() == "from-variable"


def test_a_spec_is_opened_without_a_connection_and_survives_pickling() -> None:
    spec = EngineSpec(urls=split_urls("http://a:1/v1,http://b:1/v1", "http://c:1"))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.urls == ("http://a:1/v1", "http://b:1/v1", "http://c:1")
    assert isinstance(open_engine(spec), RemoteEngine)
    assert isinstance(open_engine("http://a:1/v1, http://b:1/v1"), RemoteEngine)
    assert json.dumps(spec.urls)
