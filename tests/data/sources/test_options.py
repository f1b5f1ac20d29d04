"""What a user said about the inputs stays with the run."""

from __future__ import annotations

import json

from zellige.data.ledger import Store
from zellige.data.sources import SourceOptions


def test_a_run_stores_its_column_and_what_to_keep(tmp_path, recipe):
    run = Store(tmp_path).create_run(
        recipe, [], shard_items=4, inputs=["file:///x"], include=["*.png"], column="url", keep=["a", "b"], run_id="r"
    )
    assert run.source_options == SourceOptions(("*.png",), (), "url", ("a", "b"))
    assert Store(tmp_path).open_run("r").source_options == run.source_options


def test_a_run_from_before_there_were_columns_opens(tmp_path, recipe):
    Store(tmp_path).create_run(recipe, [], shard_items=4, inputs=["file:///x"], run_id="r").close()
    path = tmp_path / "runs/r/recipe.json"
    about = json.loads(path.read_text())
    del about["column"], about["keep"]
    path.write_text(json.dumps(about))
    assert Store(tmp_path).open_run("r").source_options == SourceOptions()
