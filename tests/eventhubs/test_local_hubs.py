"""The hubs that `dev` runs for a job that is told of none."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from samza_azure.commands.local_systems import start_hubs
from samza_azure.errors import ConfigError
from samza_azure.eventhubs.hub import EventHub

JOB = """
[streams.orders]
system = "eventhubs"
options.connect = "${HUBS_OF_A_TEST}"
options.name = "orders"
options.consumer_group = "mine"
partitions = 4
[streams.clicks]
system = "eventhubs"
options = { connect = "${HUBS_OF_A_TEST}", name = "clicks" }
[streams.again]
system = "eventhubs"
options = { connect = "${HUBS_OF_A_TEST}", name = "orders" }
[streams.seen]
schema = "n bigint"
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUBS_OF_A_TEST", "")  # is put back afterwards
    monkeypatch.delenv("HUBS_OF_A_TEST")
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_all_hubs_of_a_variable_that_is_not_set_are_there(job: Path) -> None:
    with ExitStack() as ends:
        [(variable, connect)] = start_hubs(job, ends, keeps_data=False).items()
        assert variable == "HUBS_OF_A_TEST"
        facts = {name: EventHub(name, connect=lambda: connect).facts() for name in ("orders", "clicks")}
        assert {name: len(each.partitions) for name, each in facts.items()} == {"orders": 4, "clicks": 1}


def test_none_is_started_for_a_variable_that_is_set(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBS_OF_A_TEST", "Endpoint=sb://elsewhere")
    with ExitStack() as ends:
        assert start_hubs(job, ends, keeps_data=False) == {}


def test_what_would_be_gone_is_not_kept_half(job: Path) -> None:
    with ExitStack() as ends, pytest.raises(ConfigError, match=r"HUBS_OF_A_TEST is not set.*Leave out --data"):
        start_hubs(job, ends, keeps_data=True)


def test_a_mistaken_job_file_is_left_to_the_check(job: Path) -> None:
    job.write_text("[")
    with ExitStack() as ends:
        assert start_hubs(job, ends, keeps_data=False) == {}
