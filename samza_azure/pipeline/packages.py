"""Which packages are missing, and what to do.

Some are checked at the start, since pyspark imports them only when a stage uses them.
pyspark notices a missing pandas when the DataFrame is created, and a missing protobuf only when the first batch fails.
"""

import difflib
import importlib
import importlib.metadata
import sys

from samza_azure.extras import PANDAS, SPARK, to_install

#: The packages that pipelines need now and then, by what is imported.
KNOWN = {"pandas": PANDAS, "google.protobuf": SPARK, "pyspark": SPARK}


def needs(module: str) -> str:
    """What to do about a module that is missing, or is too old or too new."""
    packages = next((KNOWN[name] for name in KNOWN if f"{module}.".startswith(f"{name}.")), None)
    if packages is not None:
        return f"Run on each machine: {to_install(packages)}"
    top = module.partition(".")[0]
    names = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names, *KNOWN}
    meant = [] if top in names else difflib.get_close_matches(top, sorted(names), n=1, cutoff=0.75)
    return (
        f"Is it spelt right?{f' Did you mean {meant[0]!r}?' if meant else ''} If so, put its file beside the job file, "
        "or install what has it on each machine."
    )
