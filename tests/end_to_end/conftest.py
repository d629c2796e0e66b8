"""The fixtures of fleets: the flights once, a world per module."""

import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .real_processes import EXAMPLE, JobOnAzurite


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole fleets take their time."""
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The first flights of the year, in order."""
    sys.path.insert(0, str(EXAMPLE))
    from flights import write

    path = tmp_path_factory.mktemp("input") / "flights.parquet"
    write(path)
    return pq.read_table(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, flights: pa.Table) -> Iterator[JobOnAzurite]:
    """A world without processors yet, for the tests of one module in their order."""
    made = JobOnAzurite(tmp_path_factory.mktemp("world"), flights)
    try:
        yield made
    finally:
        made.close()
