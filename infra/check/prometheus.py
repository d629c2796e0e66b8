"""The rules of alerts, read and tried by Prometheus' own `promtool`.

`python -m infra.check.prometheus` gets it on Debian: the distribution's package, unpacked and not installed, so that no
service begins. Elsewhere it is found if it is on the PATH.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.check.bicep import Finding

__all__ = ["TESTS", "check", "find", "install"]

RULES = Path(__file__).parents[1] / "prometheus"
#: Apart, since a file has one interval of evaluation, and thousands of steps of 5 s take promtool seconds of a core.
TESTS = ("rules_test.yml", "rules_long_test.yml")
#: Beside the packages of Python that the other checks need.
HOME = Path(sys.prefix) / "prometheus"


def find(program: str = "promtool") -> str | None:
    """Where `promtool` or `prometheus` is, if it is anywhere."""
    own = HOME / "usr" / "bin" / program
    return str(own) if own.exists() else shutil.which(program)


def install() -> bool:
    """Fetch it, if this is Debian; whether it is there now."""
    if find() is None and shutil.which("apt-get") and shutil.which("dpkg"):
        with tempfile.TemporaryDirectory() as folder:
            fetched = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True)
            for package in Path(folder).glob("prometheus_*.deb") if fetched.returncode == 0 else ():
                subprocess.run(["dpkg", "-x", package, HOME], check=True)
    return find() is not None


def check(rules: Path = RULES) -> list[Finding]:
    """What is wrong with the rules, and which of their tests fail."""
    promtool = find()
    assert promtool is not None
    found = []
    for command, names in (("check", ["rules.yml"]), ("test", TESTS)):
        done = subprocess.run([promtool, command, "rules", *names], cwd=rules, capture_output=True, text=True)
        if done.returncode != 0:
            found.append(Finding(names[0], 0, f"{done.stdout}{done.stderr}".strip()))
    return found


if __name__ == "__main__":
    if not install():
        print("promtool is not here: the rules of alerts are not tried. On Debian run apt-get update first.")
