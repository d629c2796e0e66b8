"""One tansu for all tests of a process; each test has a topic of its own."""

from collections.abc import Iterator

import pytest

from samza_azure.kafka.local_broker import LocalBroker

from .clients import Messages


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker({}) as broker:
        yield broker


@pytest.fixture
def messages(broker: LocalBroker, request: pytest.FixtureRequest) -> Messages:
    """A topic of two partitions."""
    return Messages.in_new_topic(broker, f"t{abs(hash(request.node.name))}")
