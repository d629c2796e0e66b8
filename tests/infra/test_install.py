"""The script that installs a release on a virtual machine, run by a shell. Only what it calls is played."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

TEXT = (Path(__file__).parents[2] / "infra" / "azure" / "cloud-init.yaml").read_text()
#: How docs/operate.md makes a release.
[PACK] = re.findall(r"^tar .*", (Path(__file__).parents[2] / "docs" / "operate.md").read_text(), re.MULTILINE)
#: What the script calls on a machine. `python3` makes a venv whose programs are `pip` and `python`, as played here.
PLAYED = {
    # A download that breaks off and is tried again: a file is begun anew, what went into a pipe stays there.
    "curl": """case "$*" in
  *releases*)
    to=/dev/stdout
    while [ $# -gt 0 ]; do if [ "$1" = --output ]; then to=$2; fi; shift; done
    head -c 10 "$HERE/release.tar.gz" > "$to"
    cat "$HERE/release.tar.gz" > "$to";;
  *) echo "{}";;
esac""",
    "python3": """case "$1" in
  -c) echo token;;
  -m) mkdir -p "$3/bin"; cp "$HERE/bin/pip" "$3/bin/pip"; cp "$HERE/bin/train" "$3/bin/python";;
esac""",
    "pip": 'echo install >> "$HERE/log"; exit "$PIP"',
    "train": 'echo "train $(dirname "$(dirname "$0")")" >> "$HERE/log"',
    "systemctl": 'echo "$1 $(readlink "$HERE/opt/samza-azure")" >> "$HERE/log"',
    "runuser": 'shift 3; exec "$@"',
    "install": 'for last; do :; done; mkdir -p "$last"',
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with the folders of a machine below `tmp_path`."""
    [written] = [
        each["content"]
        for each in yaml.safe_load(re.sub(r"{(\w+)}", r"\1", TEXT))["write_files"]
        if each["path"] == "/opt/install-release"
    ]
    for name in ("bin", "opt", "release/job"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in PLAYED.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("samza_azure-1-py3-none-any.whl", "constraints.txt", "job/job.toml"):
        (tmp_path / "release" / name).touch()
    subprocess.run(PACK, shell=True, cwd=tmp_path / "release", check=True)
    (tmp_path / "release" / shlex.split(PACK)[4]).rename(tmp_path / "release.tar.gz")
    path = tmp_path / "install-release"
    path.write_text(re.sub(r"(?<=[\s\"=])/(opt|etc|var)/", rf"{tmp_path}/\1/", written))
    return path


def install(script: Path, pip: int = 0) -> int:
    home = script.parent
    environment = {**os.environ, "HERE": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PIP": str(pip)}
    return subprocess.run(["sh", script], env=environment, capture_output=True, text=True).returncode


def test_a_release_that_cannot_be_installed_stops_nothing(script: Path) -> None:
    home = script.parent
    assert install(script) == 0
    first = (home / "opt" / "samza-azure").readlink()
    (home / "log").unlink()
    assert install(script, pip=1) != 0
    assert (home / "log").read_text().split() == ["install"], "the processor was stopped for nothing"
    assert (home / "opt" / "samza-azure").readlink() == first
    assert [each for each in (home / "opt").iterdir() if not each.is_symlink()] == [first]


def test_a_release_is_switched_to_when_all_of_it_is_there(script: Path) -> None:
    home = script.parent
    assert install(script) == 0
    first = (home / "opt" / "samza-azure").readlink()
    (home / "log").unlink()
    assert install(script) == 0
    assert [each.name for each in (home / "etc" / "samza-azure" / "jobName").iterdir()] == ["job.toml"]
    second = (home / "opt" / "samza-azure").readlink()
    assert first != second and not first.exists()
    assert (home / "log").read_text().splitlines() == [
        "install",
        f"train {second}",
        f"stop {first}",
        f"daemon-reload {second}",
        f"enable {second}",
    ]
