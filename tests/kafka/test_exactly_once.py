"""Each message is in the log once, whatever happens to its readers and their connections."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chaos import play


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    yield
    sys.modules.pop("outside", None)


@pytest.mark.parametrize("seed", range(2))
def test_each_message_is_in_the_log_once(seed: int, tmp_path: Path) -> None:
    play(seed, 300, tmp_path)
