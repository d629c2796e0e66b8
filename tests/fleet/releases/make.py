"""Pin a release: `python tests/fleet/releases/make.py COMMIT` puts what a fleet needs of it beside this file.

That is the package without Spark, commands and, in older commits, simulator, and the `member.py` of that time, as a zip
that Python imports from. It lies here because a shallow clone, or an archive of the sources, does not have the commit.
Pin one before each change of what is stored; those that are here stay for as long as their processors may be out there.
"""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
LEFT_OUT = ("samza_azure/spark/", "samza_azure/commands/", "samza_azure/sim/")
MEMBER = "tests/fleet/member.py"


def main(commit: str) -> None:
    """Write the zip, named by the commit. The same commit gives the same bytes."""
    short = subprocess.run(["git", "rev-parse", "--short=7", commit], check=True, capture_output=True, text=True)
    archive = subprocess.run(["git", "archive", commit, "samza_azure", MEMBER], check=True, capture_output=True)
    with (
        tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files,
        zipfile.ZipFile(HERE / f"{short.stdout.strip()}.zip", "w", zipfile.ZIP_DEFLATED) as pinned,
    ):
        for each in files:
            content = files.extractfile(each) if each.name.endswith(".py") else None
            if content is not None and not each.name.startswith(LEFT_OUT):
                name = "member.py" if each.name == MEMBER else each.name
                place = zipfile.ZipInfo(name)
                place.compress_type = zipfile.ZIP_DEFLATED
                pinned.writestr(place, content.read())


if __name__ == "__main__":
    main(sys.argv[1])
