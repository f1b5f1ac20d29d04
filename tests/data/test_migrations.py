"""Runs of older versions are read, of newer ones refused with advice."""

from __future__ import annotations

import json

import pytest

from zellige.data.ledger import StoreUnusable
from zellige.data.migrations import migrated


def test_steps_follow_each_other_from_the_version_of_the_run():
    steps = {1: lambda a: {**a, "column": None}, 2: lambda a: {**a, "keep": [a["column"]]}}
    assert migrated({"schema_version": 1}, steps, 3) == {"schema_version": 3, "column": None, "keep": [None]}
    assert migrated({"schema_version": 2, "column": "x"}, steps, 3)["keep"] == ["x"]


@pytest.mark.parametrize(
    ("version", "advice"), [(99, "upgrade"), (0, "no longer"), (None, "damaged"), ("1", "damaged")]
)
def test_other_versions_are_refused_with_advice(new_run, store, version, advice):
    run = new_run(items=1)
    path = run.path / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))
    with pytest.raises(StoreUnusable, match=advice):
        store.open_run(run.run_id)


def test_run_from_before_columns_were_chosen_is_read(new_run, store):
    run = new_run(items=3)
    path = run.path / "recipe.json"
    about = json.loads(path.read_text())
    del about["column"], about["keep"]
    path.write_text(json.dumps(about))
    again = store.open_run(run.run_id)
    assert (again.source_options.column, again.source_options.keep, len(list(again.items()))) == (None, (), 3)
