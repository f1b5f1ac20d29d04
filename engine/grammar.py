"""Grammars of answers: which tokens may come next. By llguidance, imported when a grammar is first asked for."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zellige.engine.api import Grammar, RequestRejected
from zellige.engine.detokenizer import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

#: Grammars kept compiled: a flow asks for the same one a million times.
_KEPT_GRAMMARS = 64
#: Between the tokens of JSON, where there are any: a model that has lost its way must not go on with blanks for ever.
_JSON_BLANKS = r"[ \n]{1,32}"
#: Where a schema holds schemas: by name, in a list, or one.
_BY_NAME = ("$defs", "definitions", "properties", "patternProperties")
_IN_A_LIST = ("prefixItems", "allOf", "anyOf", "oneOf")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


class GrammarState:
    """How far one answer has come in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def complete(self) -> bool:
        """Nothing may follow but the end."""
        return bool(self.matcher.is_stopped())

    def accept(self, token: int) -> None:
        """The token chosen under this state's mask; raises RequestRejected where the grammar led nowhere."""
        # After a failure the mask allows the end, whatever the text: nothing chosen under it counts.
        if self.matcher.is_error() or not self.matcher.consume_token(token):
            reason = self.matcher.get_error().partition("\n")[0]
            raise RequestRejected(f"the grammar cannot be followed any further ({reason}); simplify it")


class _Tokens:
    """A checkpoint's tokens as llguidance's TokenizerWrapper reads them.

    Not from tokenizer.json: llguidance takes every added token that looks like <this> for a special one, and a text
    with <think> in it, which checkpoints have as an ordinary token, would then be refused half-way.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, eos: int) -> None:
        self.eos_token_id, self.bos_token_id = eos, None
        self.tokens = [vocabulary.spelling(i) for i in range(len(vocabulary))]
        self.special_token_ids = sorted(vocabulary.special)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


class GrammarCompiler:
    """Grammars for one checkpoint's tokens. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, eos: frozenset[int]) -> None:
        self._vocabulary, self._source = vocabulary, tokenizer
        self._eos = sorted(eos & vocabulary.special.keys())
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._executor: LLExecutor | None = None
        self._compiled = lru_cache(_KEPT_GRAMMARS)(self._compile)
        # One thread: it waits for llguidance, which spreads a step's masks over threads of its own.
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="zellige-masks")

    def start(self, grammar: Grammar) -> GrammarState:
        """The beginning of an answer; raises RequestRejected with the place where a grammar cannot be followed."""
        return GrammarState(self._compiled(grammar).deep_copy())

    def masks(self, states: Sequence[GrammarState]) -> Future[Tensor]:
        """Which tokens each state allows, as bits (states, words) int32, computed beside whatever the caller does."""
        return self._masking.submit(self._fill, [(s.matcher, i) for i, s in enumerate(states)])

    def close(self) -> None:
        self._masking.shutdown(wait=False, cancel_futures=True)

    def _fill(self, matchers: list[tuple[LLMatcher, int]]) -> Tensor:
        assert self._executor is not None, "states come from start(), which makes it"
        words = -(-len(self._vocabulary) // 32)
        bits = torch.zeros(len(matchers), words, dtype=torch.int32)
        self._executor.unsafe_compute_mask_ptr(matchers, bits.data_ptr(), words * 4, len(matchers))
        return bits

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise RequestRejected("grammars need llguidance, which is not here: pip install llguidance") from error
        if not self._eos:
            raise RequestRejected("this checkpoint names no special token as eos_token_id, which grammars need")
        with self._lock:
            if self._tokenizer is None:
                tokens = TokenizerWrapper(_Tokens(self._vocabulary, self._source, self._eos[0]))
                self._tokenizer = LLTokenizer(tokens, eos_token=self._eos)
                self._executor = LLExecutor()
        matcher = LLMatcher(self._tokenizer, _to_llguidance(grammar), log_level=0)
        if matcher.is_error():
            raise RequestRejected(_explained(grammar, matcher.get_error()))
        return matcher


def _to_llguidance(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            return _schema_grammar(_parsed(grammar.source))
        case "json_object":
            return _schema_grammar({"type": "object"})
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            # One terminal, not rules: thousands of choices are one automaton.
            return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, grammar.choices)))


def _parsed(schema: str) -> dict[str, Any]:
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise RequestRejected(f"the grammar's JSON schema is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestRejected("the grammar's JSON schema is nested too deeply") from error
    if not isinstance(parsed, dict):
        raise RequestRejected(f"the grammar's JSON schema is a {type(parsed).__name__}; a schema is an object")
    return parsed


def _schema_grammar(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    try:
        # Overrides, so that a schema cannot ask for laxness by itself.
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": _JSON_BLANKS, "lenient": False, "coerce_one_of": False}
        )
    except ValueError as error:
        raise RequestRejected(f"the grammar's JSON schema cannot be read: {error}") from error


def _explained(grammar: Grammar, error: str) -> str:
    if grammar.kind == "json_schema":
        place = _place(_parsed(grammar.source), error)
        return f"the grammar's JSON schema cannot be followed at {place}: {_essence(error)}"
    return f"the grammar's {grammar.kind} cannot be followed: {_essence(error)}"


def _essence(error: str) -> str:
    """llguidance's reason in one line, with the character of the pattern where it names one."""
    found = re.search(r"regex parse error:\n    (?P<pattern>.*)\n    (?P<caret> *)\^.*\nerror: (?P<reason>.*)", error)
    if found:
        return f"{found['reason']} (character {len(found['caret']) + 1} of {found['pattern']!r})"
    found = re.search(r"\(in regex\): (.*)", error)
    # Of the advice that may follow a reason none is for whoever sent the request.
    return found[1] if found else error.partition("\n")[0].partition(". Enable ")[0]


def _place(schema: dict[str, Any], error: str, path: str = "$", root: dict[str, Any] | None = None) -> str:
    """The innermost schema that alone gives the same error."""
    from llguidance import LLMatcher

    root = schema if root is None else root
    for step, inner in _schemas_in(schema):
        shared: dict[str, Any] = {key: root[key] for key in ("$defs", "definitions") if key in root}
        if LLMatcher.validate_grammar(_schema_grammar(shared | inner)) == error:
            return _place(inner, error, f"{path}.{step}", root)
    return path


def _schemas_in(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas that stand directly in a schema, each with the way to it; true and false need no explanation."""
    found: list[tuple[str, Any]] = [(key, schema.get(key)) for key in _ONE]
    for key in _BY_NAME:
        if isinstance(inner := schema.get(key), dict):
            found += [(f"{key}.{name}", s) for name, s in inner.items()]
    for key in _IN_A_LIST:
        if isinstance(inner := schema.get(key), list):
            found += [(f"{key}[{i}]", s) for i, s in enumerate(inner)]
    yield from ((step, s) for step, s in found if isinstance(s, dict))
