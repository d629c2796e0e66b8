"""A parser of the user's that asks a registry, which does not answer at first."""

import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

from samza_azure.errors import StorageUnavailable


def parser_that_falters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the module `faltering` with a function `parse`. Return how many messages each of its calls was given."""
    asked: list[int] = []

    def parse(messages: pa.Table) -> pa.Table:
        asked.append(messages.num_rows)
        if len(asked) == 1:
            raise StorageUnavailable("the registry does not answer")
        return pa.table({"n": [json.loads(body)["n"] for body in messages["body"].to_pylist()]})

    monkeypatch.setitem(sys.modules, "faltering", SimpleNamespace(parse=parse))
    return asked
