"""What all tests share: properties are tried without a stop-watch, and a failure says how to repeat it."""

import signal
import sys

import pytest
from hypothesis import settings

# A shell ignores SIGINT in what it begins in the background, and so would each process that a test starts and
# interrupts: what is ignored stays ignored in children, what is handled does not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What pytest makes of the asserts of 300 modules takes half of a collection: the next one finds it made, also where the
# environment says otherwise. The processes that tests start do as that says.
sys.dont_write_bytecode = False

# A busy machine is no finding; a test that hangs is caught by its timeout. Where the environment has CI, hypothesis
# makes its own profile the default, in which each run of a test draws the same examples.
settings.register_profile("samza_azure", settings.get_profile("default"), deadline=None, print_blob=True)
settings.load_profile("samza_azure")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` is read by tests/group/conftest.py."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of tests/group anew")
