"""Older stores, brought to the present schema step by step as they are read; the files themselves stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zellige.data.files import StoreUnusable
from zellige.data.schema import SCHEMA_VERSION

About = dict[str, Any]
#: By the version that a step starts from: ``recipe.json`` of that version to the next one's.
#: 1: ``items.parquet`` had no ``file_version``, which reads as null; ``recipe.json`` was the same.
STEPS: Mapping[int, Callable[[About], About]] = {1: lambda about: about}


def migrated(
    about: About, steps: Mapping[int, Callable[[About], About]] = STEPS, present: int = SCHEMA_VERSION
) -> About:
    """``recipe.json`` as version ``present`` would have it; raises StoreUnusable for a version it cannot come from."""
    run, version = about.get("run_id"), about.get("schema_version")
    if not isinstance(version, int):
        raise StoreUnusable(f"run {run} does not say its schema version ({version!r}): its recipe.json is damaged")
    if version > present:
        raise StoreUnusable(
            f"run {run} has schema version {version}, this zellige reads up to {present}; it was made by a newer "
            "zellige: upgrade to open it"
        )
    while version < present:
        if version not in steps:
            raise StoreUnusable(f"run {run} has schema version {version}, which this zellige no longer reads")
        about, version = {**steps[version](about), "schema_version": version + 1}, version + 1
    return about
