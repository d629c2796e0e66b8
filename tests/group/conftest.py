"""The fixture `story`, and the comparison of a story with its transcript."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.group.transcript import Story, difference, file_of, text_of


@pytest.fixture
def story() -> Story:
    """A story to tell. When the test has passed, the story is compared with its transcript."""
    return Story()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Compare a story after its test, so that a difference fails the test itself."""
    result: Any = yield
    told = pyfuncitem.funcargs.get("story")
    if isinstance(told, Story):
        path, text = file_of(pyfuncitem.name), text_of(pyfuncitem.name, pyfuncitem.function.__doc__, told)
        if pyfuncitem.config.getoption("--rewrite"):
            path.write_text(text)
        elif differs := difference(path, text):
            pytest.fail(f"{differs}\n\nIf this is meant: pytest --rewrite, and review the diff.", pytrace=False)
    return result
