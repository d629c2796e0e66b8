"""For pytest, `-p tests.mutation.plugin`: the tests run on code with the change that MUTANT names."""

import os

from tests.mutation.places import make

make(os.environ["MUTANT"])
