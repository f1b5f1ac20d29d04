"""The recipe of a job: everything that decides its answers, checked before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zellige.data.decode import DECODE_RULES
from zellige.data.questions import questions_from_file, questions_from_texts
from zellige.data.schema import REQUEST_ID, Question, Recipe, Tiling
from zellige.data.sources.missing import near_names
from zellige.data.sources.opening import asks_itself
from zellige.data.uri import from_uri, is_file_uri
from zellige.engine.api import Grammar, ModelIdentity, RequestRejected, Sampling, VisionBudget
from zellige.tasks.job import DEFAULT_MAX_TOKENS, DEFAULT_PROMPTS, Job, WrongUseError
from zellige.tasks.language import language_code
from zellige.tasks.second_tries import LADDER
from zellige.tasks.validate import Validator

#: Part of a recipe's ``preprocessing``: raised whenever tiling, validating, second tries or merging change an answer.
ANSWER_RULES = 6
#: In a recipe's ``sampling``, beside what the engine is told. Only where there is one: the JSON schema that answers
#: have to meet, as text, and the code of the language that they have to be in. Always: how many second tries there are.
_SCHEMA, _LANGUAGE, _SECOND_TRIES = "json_schema", "language", "second_tries"


def sampling_of(job: Job) -> Sampling:
    """How a new run samples; raises WrongUseError for a value out of range."""
    try:
        return Sampling(
            max_tokens=DEFAULT_MAX_TOKENS[job.task] if job.max_tokens is None else job.max_tokens,
            temperature=job.temperature or 0.0,
            seed=job.seed,
            repetition_stop=not job.raw,
        )
    except RequestRejected as e:
        raise WrongUseError(str(e)) from e


def tiling_of(text: str | None, raw: bool = False) -> Tiling:
    """The tiling that ``--tile`` names, ``off`` where a raw answer is wanted; raises WrongUseError."""
    if raw and text not in (None, "off"):
        raise WrongUseError(
            f"--raw gives one request an item, so --tile {text} does not go with it; leave one of them out"
        )
    if text == "auto" or (text is None and not raw):
        return "auto"
    if text in ("off", None):
        return "off"
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise WrongUseError(f"--tile {text}: give auto, off or the side of a tile in pixels")


def tile_fits(tiling: Tiling, budget: VisionBudget) -> None:
    """Raises WrongUseError for tiles too small for the model: every row of the run would fail for it."""
    if isinstance(tiling, int) and tiling < budget.cell:
        raise WrongUseError(f"--tile {tiling} is smaller than one cell of the model; give {budget.cell} or more")


def questions_of(job: Job) -> tuple[Question, ...]:
    """What is asked about every item; raises WrongUseError where nothing or nothing usable is."""
    if job.task != "ask":
        return (Question(job.task),)
    if not job.questions and not job.questions_file and asks_itself(job.inputs, job.source_options):
        return (Question(REQUEST_ID),)
    if bool(job.questions) == bool(job.questions_file):
        raise WrongUseError("give either --question TEXT (as often as needed) or --questions FILE")
    file = None if job.questions_file is None else Path(local_path(job.questions_file))
    try:
        return questions_from_texts(job.questions) if file is None else questions_from_file(file)
    except FileNotFoundError as e:
        raise WrongUseError(f"--questions: {near_names(os.fsencode(file or ''))}") from e
    except OSError as e:
        raise WrongUseError(f"--questions {file}: {e.strerror}; name a JSONL, CSV or Parquet file") from e
    except ValueError as e:
        raise WrongUseError(str(e)) from e


def grammar_of(recipe: Recipe) -> Grammar | None:
    """What every answer has to be, where the recipe says it."""
    schema = recipe.sampling.get(_SCHEMA)
    return None if schema is None else Grammar("json_schema", schema)


def validator_of(recipe: Recipe) -> Validator:
    """What refuses answers of a run."""
    asked = recipe.sampling
    return Validator(recipe.task, recipe.raw, schema=asked.get(_SCHEMA), language=asked.get(_LANGUAGE))


def second_tries_of(recipe: Recipe) -> int:
    """How often a refused answer is asked for again at most."""
    return int(recipe.sampling[_SECOND_TRIES])


def recipe_of(
    job: Job, questions: tuple[Question, ...], tiling: Tiling, sampling: Sampling, identity: ModelIdentity
) -> Recipe:
    """Everything that decides the answers of a new run."""
    prompt = DEFAULT_PROMPTS[job.task] if job.prompt is None else job.prompt
    usual_tries = 0 if job.raw else len(LADDER)
    return Recipe(
        task=job.task,
        questions=questions,
        prompt=prompt,
        tiling=tiling,
        sampling=asdict(sampling) | {_SECOND_TRIES: usual_tries} | _beside_sampling(job),
        raw=bool(job.raw),
        **model_fields(identity),
    )


def _beside_sampling(job: Job) -> dict[str, Any]:
    """What the job says of its answers that the engine is not told, by its name in ``sampling``."""
    language = None if job.language is None else language_code(job.language)
    said = {_SCHEMA: job.json_schema, _LANGUAGE: language, _SECOND_TRIES: job.second_tries}
    return {name: value for name, value in said.items() if value is not None}


def stored_sampling(recipe: Recipe) -> Sampling:
    """The sampling of a recipe that was read back: JSON's lists are tuples again."""
    plain: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in recipe.sampling.items()
        if k not in (_SCHEMA, _LANGUAGE, _SECOND_TRIES)
    }
    return Sampling(**plain)


def model_fields(identity: ModelIdentity) -> dict[str, Any]:
    """The fields of a recipe that the model decides."""
    return {
        "preprocessing": {
            "decode_rules": DECODE_RULES,
            "answer_rules": ANSWER_RULES,
            "follows_instructions": identity.follows_instructions,
            "lines_at_once": identity.lines_at_once,
            **asdict(identity.vision),
        },
        "model_name": identity.name,
        "model_fingerprint": identity.fingerprint,
        "model_dtype": identity.dtype,
    }


def asked_over(job: Job, recipe: Recipe) -> Recipe:
    """``recipe`` with what the job says over it: equal to it where the job would change no answer."""
    sampling = dict(recipe.sampling)
    for name in ("max_tokens", "temperature", "seed"):
        if (value := getattr(job, name)) is not None:
            sampling[name] = value
    sampling |= _beside_sampling(job)
    if job.raw is not None:
        sampling["repetition_stop"] = not job.raw
    asked = bool(job.questions or job.questions_file)
    return replace(
        recipe,
        task=job.task,
        questions=questions_of(job) if asked else recipe.questions,
        prompt=recipe.prompt if job.prompt is None else job.prompt,
        tiling=recipe.tiling if job.tile is None else tiling_of(job.tile),
        raw=recipe.raw if job.raw is None else job.raw,
        sampling=sampling,
    )


def local_path(text: str) -> str:
    """The path of a ``file://`` address, or the path itself."""
    return os.fsdecode(from_uri(text)) if is_file_uri(text) else text
