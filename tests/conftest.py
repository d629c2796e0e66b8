"""What all tests share: properties are tried without a stop-watch, and a failure says how to repeat it."""

import pytest
from hypothesis import settings

# A busy machine is no finding; a test that hangs is caught by its timeout.
settings.register_profile("samza_azure", deadline=None, print_blob=True)
settings.load_profile("samza_azure")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` is read by tests/group/conftest.py."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of tests/group anew")
