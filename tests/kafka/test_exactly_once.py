"""Each message is in the log once, whatever happens to its readers and their connections."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import mock_chaos
from .chaos import play


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    yield
    sys.modules.pop("outside", None)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.long) for seed in range(5)] + [10])
def test_each_message_is_in_the_log_once(seed: int, tmp_path: Path) -> None:
    play(seed, 120, tmp_path)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.long) for seed in range(8)] + [11])
def test_each_message_of_a_broker_that_fails_is_in_the_log_once(seed: int) -> None:
    mock_chaos.play(seed, 300)
