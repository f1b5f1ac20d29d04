"""Whole runs in this process, without Prefect, with a fake engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from zellige.data.catalog import Catalog
from zellige.data.ledger import RecipeDiffers, Store, StoreUnusable
from zellige.data.schema import AnswerRow
from zellige.flows.pipeline import RunFailedError, exit_code, run_job
from zellige.tasks import lease
from zellige.tasks.answer import FAILURES_UNTIL_DOWN
from zellige.tasks.forecast import forecast
from zellige.tasks.job import Job, WrongUseError
from zellige.tasks.watch import Tally, Watch, watched_by

Draw = Callable[..., Path]
Rows = Callable[[Path, str], list[dict[str, Any]]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def watch() -> Any:
    """What the run of one test counts."""
    seen = Watch()
    with watched_by(seen):
        yield seen


def caption(store: Path, inputs: Path, **more: Any) -> dict[str, Any]:
    return run_job(Job("caption", str(store), (str(inputs),), **more))


def ask(store: Path, inputs: Path, *questions: str, **more: Any) -> dict[str, Any]:
    return run_job(Job("ask", str(store), (str(inputs),), questions=questions, **more))


def broken_inputs(folder: Path) -> list[Path]:
    """Ten files that are no good, each in a way of its own; the last of them does not exist."""
    good = folder / "good.png"
    Image.new("RGB", (64, 64), "red").save(good)
    Image.new("RGB", (256, 256), "blue").save(folder / "good.jpg", quality=90)
    png, jpeg = good.read_bytes(), (folder / "good.jpg").read_bytes()
    good.unlink(), (folder / "good.jpg").unlink()
    contents = {
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) - 30],
        "empty.png": b"",
        "text.jpg": b"this is no picture\n" * 20,
        "head.png": png[:10],
        "zeros.bmp": b"\0" * 500,
        "garbage.webp": b"RIFF\x10\0\0\0WEBPgarbage.",
        "flipped.png": png[:40] + bytes(b ^ 255 for b in png[40:]),
        "notgif.gif": b"GIF89a\1\0",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in (*contents, "missing.png")]


def test_every_image_ends_as_a_row_and_ten_broken_ones_fail(
    fake: Any, draw: Draw, store: Path, rows: Rows, watch: Watch
) -> None:
    folder = draw("a.png", (200, 10, 10)).parent
    draw("sub/b.png", (10, 200, 10))
    bad = broken_inputs(folder)
    done = run_job(Job("caption", str(store), (str(folder), str(bad[-1]))))
    assert (done["items"], done["rows"], done["ok"], done["failed"], done["state"]) == (12, 12, 2, 10, "finished")
    assert exit_code(done) == 3
    found = rows(store, done["run_id"])
    assert {r["uri"].rpartition("/")[2] for r in found if r["status"] == "failed"} == {p.name for p in bad}
    assert all(r["error_kind"] and r["error"] and r["answer"] is None for r in found if r["status"] == "failed")
    assert {r["answer"] for r in found if r["status"] == "ok"} == {"colour 200 10 10", "colour 10 200 10"}
    assert sum(done["errors"].values()) == 10
    assert done["errors"]["not_found"] == 1
    assert fake.opened[0].asked == ["Describe the image."] * 2
    assert fake.opened[0].closed


def test_row_says_what_was_asked_of_which_image_and_what_it_cost(
    fake: Any, draw: Draw, store: Path, rows: Rows
) -> None:
    path = draw("a.png", (1, 2, 3), (96, 64))
    done = caption(store, path, prompt="What is this?", model="other")
    (row,) = rows(store, done["run_id"])
    assert row["uri"] == path.as_uri()
    assert (row["width"], row["height"], row["frames"], row["tiles"]) == (96, 64, 1, [])
    assert (row["task"], row["question_id"], row["question"]) == ("caption", "caption", None)
    assert (row["image_tokens"], row["prompt_tokens"], row["completion_tokens"]) == (6, 11, 4)
    assert (row["finish_reason"], row["attempts"], row["engine"]) == ("stop", 1, "other")
    assert row["mean_logprob"] == pytest.approx(-0.1)
    assert row["decode_s"] > 0
    assert row["engine_s"] == pytest.approx(0.01)
    assert row["recipe"] == Store(store).open_run(done["run_id"]).recipe.fingerprint
    assert fake.opened[0].asked == ["What is this?"]


def test_failures_of_the_engine_fail_their_rows_by_kind(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    planted = {
        "reject": ("engine_rejected", None),
        "fail": ("engine_failed", None),
        "nonfinite": ("nonfinite", None),
        "crash": ("engine_failed", None),
        "loop": ("repetition", fake.module.LOOP_TEXT),
        "cut": ("length", "a red"),
        "empty": ("invalid_output", "  "),
        "fail_once": (None, "colour 11 20 30"),
        "loop_if_greedy": (None, "colour 11 20 30"),
        "good": (None, "colour 10 20 30"),
    }
    for name in planted:
        first = getattr(fake.module, name.upper(), None)
        draw(f"{name}.png", size=(16, 16), **({} if first is None else {"first": first}))
    folder = draw("good.png", size=(16, 16)).parent
    done = caption(store, folder, second_tries=1)  # at half the pixels the engine would not know what to do
    found = {r["uri"].rpartition("/")[2][:-4]: (r["error_kind"], r["answer"]) for r in rows(store, done["run_id"])}
    assert found == planted
    assert done["errors"]["engine_failed"] == 2
    assert done["throughput"]["second_tries"] == 4
    assert done["throughput"]["retries"] == 5


def test_raw_keeps_the_answer_as_it_came(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    folder = draw("loop.png", first=fake.module.LOOP).parent
    draw("large.png", size=(600, 600))
    done = caption(store, folder, raw=True)
    found = {r["uri"].rpartition("/")[2]: r for r in rows(store, done["run_id"])}
    assert (found["loop.png"]["status"], found["loop.png"]["finish_reason"]) == ("ok", "repetition")
    assert found["large.png"]["tiles"] == []
    assert len(fake.opened[0].asked) == 2


def test_questions_of_an_image_follow_each_other_and_decode_once(
    fake: Any, draw: Draw, store: Path, rows: Rows
) -> None:
    folder = draw("a.png").parent
    draw("b.png", (40, 50, 60))
    bad = folder / "c.png"
    bad.write_bytes(b"no picture")
    done = ask(store, folder, "Which colour?", "How many?")
    found = rows(store, done["run_id"])
    assert [(r["uri"][-5:], r["question_id"], r["question"], r["status"]) for r in found] == [
        (f"{name}.png", f"q{n}", text, "failed" if name == "c" else "ok")
        for name in "abc"
        for n, text in ((1, "Which colour?"), (2, "How many?"))
    ]
    assert fake.opened[0].asked == ["Which colour?", "How many?"] * 2
    assert done["throughput"]["images"] == 2


def test_large_image_is_asked_tile_by_tile(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    path = draw("poster.png", (9, 9, 9), (300, 200))
    done = ask(store, path, "Which colour?")
    (row,) = rows(store, done["run_id"])
    overview, *tiles = row["tiles"]
    assert (overview["x"], overview["y"], overview["width"], overview["height"]) == (0, 0, 300, 200)
    assert len(tiles) >= 4
    assert all(t["width"] * t["height"] <= 128 * 128 for t in tiles)
    assert all(
        t["answer"] == "colour 9 9 9" and t["confidence"] == pytest.approx(0.905, abs=1e-3) for t in row["tiles"]
    )
    assert len(fake.opened[0].asked) == done["throughput"]["tiles"] == len(row["tiles"])
    whole = ask(store, path, "Which colour?", tile="off")
    assert rows(store, whole["run_id"])[0]["tiles"] == []


def test_shape_that_the_model_cannot_see_fails_alone(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    folder = draw("line.png", size=(1000, 1)).parent
    draw("good.png")
    done = caption(store, folder)
    assert {r["uri"][-8:-4]: r["error_kind"] for r in rows(store, done["run_id"])} == {
        "line": "engine_rejected",
        "good": None,
    }


def test_throughput_is_stored_with_the_run(fake: Any, draw: Draw, store: Path, watch: Watch) -> None:
    folder = draw("a.png").parent
    draw("b.png", (40, 50, 60))
    done = caption(store, folder)
    stored = Store(store).open_run(done["run_id"]).throughput()
    assert {k: stored[k] for k in ("items", "rows", "images", "tiles", "requests", "image_tokens")} == {
        "items": 2,
        "rows": 2,
        "images": 2,
        "tiles": 2,
        "requests": 2,
        "image_tokens": 8,
    }
    assert stored["vision_s"] == pytest.approx(0.002)
    assert 0 < stored["engine_s"] <= stored["wall_s"]
    assert all(stored[k] > 0 for k in ("load_s", "plan_s", "decode_s", "commit_s"))
    assert done["throughput"]["items_per_s"] == pytest.approx(2 / stored["wall_s"])


def test_what_others_did_meanwhile_is_no_longer_to_be_done(
    fake: Any, draw: Draw, store: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        folder = draw(f"{n}.png", (n, 0, 0)).parent
    commit, helped = lease.commit, []

    def helping(*mine: Any) -> None:
        if not helped:
            (run_id,) = Store(store).run_ids()
            other = Store(store).open_run(run_id)
            helped.append(held := other.lease())
            assert held is not None
            question = other.recipe.questions[0]
            row = AnswerRow.of(run_id, other.recipe, held.shard.items[0], question, "ok", answer="x")
            held.commit([row])
            other.close()
        commit(*mine)

    monkeypatch.setattr(lease, "commit", helping)
    done = caption(store, folder, shard_items=1)
    assert (done["ok"], watch.tally.items, watch.tally.items_total) == (4, 3, 3)


def test_limit_takes_the_first_items(fake: Any, draw: Draw, store: Path, rows: Rows) -> None:
    for name in "abcd":
        folder = draw(f"{name}.png").parent
    done = caption(store, folder, limit=2)
    assert [r["uri"][-5] for r in rows(store, done["run_id"])] == ["a", "b"]


def test_empty_folder_is_a_finished_run_of_nothing(fake: Any, tmp_path: Path, store: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = caption(store, tmp_path / "nothing")
    assert (done["items"], done["state"], exit_code(done)) == (0, "finished", 0)


def test_run_is_in_the_index(fake: Any, draw: Draw, store: Path) -> None:
    done = caption(store, draw("a.png"))
    (run,) = Catalog(store).runs()
    assert (run["run_id"], run["flow"], run["state"], run["ok"]) == (done["run_id"], "caption", "finished", 1)


def stop_after(watch: Watch, items: int) -> None:
    def on_change(tally: Tally) -> None:
        if tally.items >= items:
            watch.stop.set()

    watch.on_change = on_change


def test_stopped_run_commits_the_shard_in_hand_and_is_resumed_without_asking_twice(
    fake: Any, draw: Draw, store: Path, rows: Rows, watch: Watch
) -> None:
    for i in range(12):
        folder = draw(f"{i:02}.png", (i, 0, 0)).parent
    stop_after(watch, 2)
    stopped = caption(store, folder, shard_items=3, model="/models/fake", prompt="Say.")
    assert (stopped["state"], stopped["ok"], exit_code(stopped)) == ("interrupted", 3, 1)
    with watched_by(Watch()):
        done = run_job(Job("caption", str(store), resume=stopped["run_id"]))
    assert (done["run_id"], done["state"], done["ok"]) == (stopped["run_id"], "finished", 12)
    assert len({r["row_id"] for r in rows(store, done["run_id"])}) == 12
    assert [len(e.asked) for e in fake.opened] == [3, 9]
    assert fake.opened[1].model == "/models/fake"
    assert done["throughput"]["items"] == 12


def test_items_answered_again_are_not_counted_twice(fake: Any, draw: Draw, store: Path) -> None:
    """Neither by a retry nor where a part that was no good is made anew; the bar counts what is left to do."""
    for name in "abcde":
        folder = draw(f"{name}.png").parent
    (folder / "a.png").write_bytes(b"no picture")
    first = caption(store, folder, shard_items=3)
    counted = {name: first["throughput"][name] for name in ("items", "rows", "failed", "requests")}
    with watched_by(seen := Watch()):
        done = run_job(Job("caption", str(store), resume=first["run_id"], retry=("failed",)))
    assert (seen.tally.items_total, seen.tally.items) == (1, 1)
    assert {name: done["throughput"][name] for name in counted} == counted
    part = Store(store).open_run(first["run_id"]).part_path(1)
    part.write_bytes(part.read_bytes()[:-20])
    with watched_by(seen := Watch()):
        done = run_job(Job("caption", str(store), resume=first["run_id"]))
    assert (seen.tally.items_total, seen.tally.items) == (2, 2)
    assert {name: done["throughput"][name] for name in ("items", "rows", "failed")} == {
        "items": 5,
        "rows": 5,
        "failed": 1,
    }
    assert done["throughput"]["requests"] == counted["requests"] + 1


def test_resuming_a_finished_run_does_nothing(fake: Any, draw: Draw, store: Path) -> None:
    done = caption(store, draw("a.png"))
    again = run_job(Job("caption", str(store), resume=done["run_id"]))
    assert again["state"] == "finished"
    assert len(fake.opened) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"prompt": "Other."}, "prompt"),
        ({"max_tokens": 7}, "sampling.max_tokens"),
        ({"temperature": 0.5}, "sampling.temperature"),
        ({"seed": 1}, "sampling.seed"),
        ({"tile": "off"}, "tiling"),
        ({"raw": True}, "raw"),
        ({"model": "another"}, "model_fingerprint"),
    ],
)
def test_resuming_with_another_recipe_is_refused_with_the_difference(
    fake: Any, draw: Draw, store: Path, more: dict[str, Any], told: str
) -> None:
    done = caption(store, draw("a.png"))
    with pytest.raises(RecipeDiffers, match=told):
        run_job(Job("caption", str(store), resume=done["run_id"], **more))


@pytest.mark.parametrize(
    "more", [{"limit": 3}, {"shard_items": 3}, {"include": ("*.jpg",)}, {"inputs": ("/elsewhere",)}]
)
def test_resuming_over_other_inputs_is_refused(fake: Any, draw: Draw, store: Path, more: dict[str, Any]) -> None:
    done = caption(store, draw("a.png"))
    with pytest.raises(WrongUseError, match="begun otherwise"):
        run_job(Job("caption", str(store), resume=done["run_id"], **more))


def test_resuming_with_the_same_options_is_allowed(fake: Any, draw: Draw, store: Path) -> None:
    path = draw("a.png")
    done = caption(store, path, prompt="Say.", max_tokens=9)
    again = caption(store, path, prompt="Say.", max_tokens=9, resume=done["run_id"])
    assert again["run_id"] == done["run_id"]


def test_engine_that_is_gone_stops_the_run_so_that_it_can_be_resumed(
    fake: Any, draw: Draw, store: Path, rows: Rows
) -> None:
    for i in range(FAILURES_UNTIL_DOWN + 4):
        folder = draw(f"{i:02}.png", (i, 0, 0), (16, 16), first=fake.module.FAIL).parent
    with pytest.raises(RunFailedError, match="failed one after another") as failed:
        caption(store, folder, shard_items=100)
    summary = failed.value.summary
    assert (summary["state"], summary["ok"], summary["failed"]) == ("failed", 0, 0)
    assert fake.opened[0].closed


def test_store_that_goes_away_is_told_as_that(
    fake: Any, draw: Draw, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        shutil.rmtree(store)
        commit(*_)

    commit = lease.commit
    monkeypatch.setattr(lease, "commit", gone)
    with pytest.raises(StoreUnusable, match=str(store)):
        caption(store, draw("a.png"))


def test_dry_run_counts_and_writes_nothing(fake: Any, draw: Draw, store: Path) -> None:
    folder = draw("a.png", size=(64, 64)).parent
    draw("large.png", size=(300, 200))
    (folder / "bad.png").write_bytes(b"no picture")
    found = forecast(Job("ask", str(store), (str(folder),), questions=("One?", "Two?")))
    assert (found.items, [u[-7:] for u in found.unreadable]) == (3, ["bad.png"])
    done = ask(store, folder, "One?", "Two?")
    assert (found.calls, found.vision_tokens) == (
        done["throughput"]["requests"],
        done["throughput"]["image_tokens"],
    )
    assert found.views == done["throughput"]["tiles"]


@pytest.mark.parametrize(
    "job",
    [
        {"task": "caption", "tile": "some"},
        {"task": "caption", "tile": "0"},
        {"task": "caption", "raw": True, "tile": "auto"},
        {"task": "caption", "temperature": float("nan")},
        {"task": "ask"},
        {"task": "ask", "questions": ("",)},
        {"task": "ask", "questions_file": "/nowhere.csv"},
        {"task": "ask", "questions": ("a?",), "questions_file": "/nowhere.csv"},
    ],
)
def test_wrong_use_is_found_before_an_engine_is_opened(fake: Any, draw: Draw, store: Path, job: dict[str, Any]) -> None:
    with pytest.raises(WrongUseError):
        run_job(Job(store=str(store), inputs=(str(draw("a.png")),), **job))
    assert fake.opened == []
    assert not store.exists()
