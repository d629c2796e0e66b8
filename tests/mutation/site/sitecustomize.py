"""Run by each Python process that has this folder in its PYTHONPATH: loads the mutant that the environment names."""

import os

if "SAMZA_AZURE_MUTANT" in os.environ or "SAMZA_AZURE_REACH" in os.environ:
    from tests.mutation.hook import install

    install()
