"""What ``zellige deploy`` refuses before a server is asked: what would fail in the night only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from zellige.flows.deploy import check, deploy, names
from zellige.tasks.job import WrongUseError

SHIPPED = Path(__file__).parents[2] / "prefect.yaml"


def test_file_that_ships_is_right() -> None:
    check(SHIPPED)
    assert names(SHIPPED) == ["caption/nightly", "ask/documents", "caption/by-hand", "ask/by-hand", "read/by-hand"]


def test_nights_that_ship_look_for_what_is_new_and_never_overlap() -> None:
    scheduled = [one for one in yaml.safe_load(SHIPPED.read_text())["deployments"] if one.get("schedules")]
    assert len(scheduled) == 2
    for one in scheduled:
        assert one["parameters"]["new_only"] is True
        assert one["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
        assert one["tags"] == ["zellige"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parameters": {"inputs": ["images"]}}, "absolute"),
        ({"parameters": {"store": "answers"}}, "absolute"),
        ({"parameters": {"input": ["/images"]}}, "no parameter input"),
        ({"entrypoint": "zellige.flows.caption.captoin"}, "no flow"),
        ({"entrypoint": None}, "no flow"),
    ],
)
def test_what_would_fail_in_the_night_is_refused_with_the_deployment_named(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    file = tmp_path / "prefect.yaml"
    one = {"name": "mine", "entrypoint": "zellige.flows.caption.caption", "parameters": {"inputs": ["s3://b/x"]}}
    file.write_text(yaml.safe_dump({"deployments": [one]}))
    check(file)
    file.write_text(yaml.safe_dump({"deployments": [one | changes]}))
    with pytest.raises(WrongUseError, match=told) as error:
        check(file)
    assert "deployment mine" in str(error.value)


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "deployments: 3", "deployments: [3]"])
def test_file_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prefect.yaml"
    file.write_text(text)
    with pytest.raises(WrongUseError, match=r"prefect\.yaml"):
        check(file)


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="scheduling"):
        check(tmp_path / "none.yaml")


def test_command_without_a_server_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert deploy(SHIPPED) == 2
    assert "prefect server start" in capsys.readouterr().err
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert deploy(SHIPPED) == 1
    told = capsys.readouterr().err
    assert "no Prefect server answers" in told
    assert "Traceback" not in told


def test_night_of_the_docs_is_right(tmp_path: Path) -> None:
    page = (SHIPPED.parent / "docs" / "scheduling.md").read_text()
    file = tmp_path / "prefect.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert names(file) == ["caption/nightly"]
    check(file)
