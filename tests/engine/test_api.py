"""What a request may ask for is judged in one place, by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from zellige.engine.api import MAX_LOGPROBS, MAX_STOPS, Grammar, Request, RequestRejected, Sampling, alternatives, ask


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", v) for v in (0, -1, None, 1.5, True, "9")],
        *[("min_tokens", v) for v in (-1, None, 257)],
        *[("temperature", v) for v in (math.nan, math.inf, -1, -1e-9, 10.5, None, "1", True)],
        *[("top_p", v) for v in (0, -0.1, 1.01, math.nan)],
        *[("top_k", v) for v in (-2, 1.0, None)],
        *[("min_p", v) for v in (-0.1, 1.1, math.nan)],
        *[("seed", v) for v in (1.5, "1", True)],
        *[("stop", v) for v in ("END", ("",), (None,), ("a", ""), ("x" * 1001,), ("a",) * (MAX_STOPS + 1))],
        *[("stop_token_ids", v) for v in ((None,), (-1,), (1.0,), (True,))],
        *[(f"{kind}_penalty", v) for kind in ("frequency", "presence") for v in (-2.1, 2.1, math.nan)],
        *[("logprobs", v) for v in (-1, MAX_LOGPROBS + 1, True)],
        *[("logit_bias", v) for v in (((-1, 1.0),), ((3, math.nan),), ((3, 101),), ((3, 1.0), (3, 2.0)))],
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestRejected, match=field):
        Sampling(**{field: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 10**9},
        {"max_tokens": 5, "min_tokens": 5},
        {"temperature": 1e-6},
        {"temperature": 10},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"top_k": 10**12},
        {"seed": -(2**63)},
        {"logprobs": 0},
        {"logit_bias": ((0, -100), (1, 100))},
    ],
)
def test_the_ends_of_what_is_possible_are_accepted(settings: dict[str, Any]) -> None:
    Sampling(**settings)


@pytest.mark.parametrize(
    ("grammar", "match"),
    [
        ({"kind": "yaml"}, "yaml"),
        ({"kind": "regex"}, "source"),
        ({"kind": "json_schema"}, "source"),
        ({"kind": "choice"}, "choices"),
        ({"kind": "choice", "choices": "ab"}, "list"),
        ({"kind": "choice", "choices": ("a", "")}, "choice 1"),
        ({"kind": "regex", "source": "a\ud800"}, "surrogate"),
        ({"kind": "choice", "choices": ("\udfff",)}, "surrogate"),
    ],
)
def test_a_grammar_that_says_nothing_is_refused(grammar: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestRejected, match=match):
        Grammar(**grammar)


@pytest.mark.parametrize("setting", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_a_grammar_and_a_setting_that_forbids_its_end_exclude_each_other(setting: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected, match=next(iter(setting))):
        Request(ask("x").messages, Sampling(**setting), grammar=Grammar("json_object"))


def test_alternatives_draw_apart_and_the_first_draws_what_one_would() -> None:
    request = ask("x", sampling=Sampling(temperature=1.0, seed=5))
    several = alternatives(request, 4)
    assert several[0] == request
    assert several[:2] == alternatives(request, 2)
    assert len({r.sampling.seed for r in several}) == len({r.request_id for r in several}) == 4
    assert all(replace(r, sampling=request.sampling, request_id=request.request_id) == request for r in several)
    assert [r.sampling.seed for r in alternatives(ask("x"), 3)] == [None] * 3


@pytest.mark.parametrize("n", [0, -1, None, 1.0])
def test_a_number_of_alternatives_that_makes_no_sense_is_refused(n: Any) -> None:
    with pytest.raises(RequestRejected, match="n is"):
        alternatives(ask("x"), n)
