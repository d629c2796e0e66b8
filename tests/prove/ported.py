"""The five jobs of `examples/ported`, plain and carried over, each by real processes: equal rows.

python tests/prove/ported.py; a few minutes.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "examples" / "ported")]

from compare import main  # noqa: E402  (needs the path above)
from rows import JOBS  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(JOBS))
