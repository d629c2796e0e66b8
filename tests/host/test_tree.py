"""The processes below one, and their cgroup. `tests/fleet/test_guard.py` has what a guard does with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samza_azure.host.tree import Cgroup

#: Forks twice, so that the sleeping process is below nobody but its adopter, and says its id.
ADOPTED = """
import os, sys
from samza_azure.host.tree import below, end_all
from samza_azure.machine.processes import adopt_orphans
adopt_orphans()
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (sleeper := os.fork()) == 0:
        os.execvp("sleep", ["sleep", "600"])
    os.write(writing, str(sleeper).encode())
    os._exit(3)
sleeper = int(os.read(reading, 99))
statuses = {}
assert sleeper in below(os.getpid())
end_all(ended=lambda process, status: statuses.update({process: os.waitstatus_to_exitcode(status)}))
print(below(os.getpid()), statuses.pop(sleeper), sorted(statuses.values()))
"""


def test_an_orphan_in_a_session_of_its_own_is_below_its_adopter_and_is_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", ADOPTED], capture_output=True, text=True, timeout=60)
    assert ended.stdout in ("[] -9 [3]\n", "[] -9 [-9]\n"), ended.stderr  # its parent has exited, or was as quick


def test_there_is_no_cgroup_where_version_2_is_not_mounted_or_not_ours(tmp_path: Path) -> None:
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    assert Cgroup.named("guard", tmp_path) is None
    (proc / "cgroup").write_text("4:memory:/elsewhere\n0::/unit\n")
    (proc / "mounts").write_text("cgroup /v1 cgroup rw 0 0\n")
    assert Cgroup.named("guard", tmp_path) is None
    (proc / "mounts").write_text("cgroup /v1 cgroup rw 0 0\ncgroup2 /v2 cgroup2 rw 0 0\n")
    assert Cgroup.named("guard", tmp_path) is None  # it cannot be made
    (tmp_path / "v2" / "unit" / "guard").mkdir(parents=True)
    assert Cgroup.named("guard", tmp_path) is None  # it has nothing to write to
    for name in ("cgroup.kill", "cgroup.procs"):
        (tmp_path / "v2" / "unit" / "guard" / name).touch()
    found = Cgroup.named("guard", tmp_path)
    assert found is not None and found.folder == tmp_path / "v2" / "unit" / "guard"


def test_a_cgroup_of_the_kernel_ends_what_has_entered_it() -> None:
    cgroup = Cgroup.named(f"samza-azure-test-{os.getpid()}")
    if cgroup is None:
        pytest.skip("there is no cgroup of version 2 that this user may change")
    with subprocess.Popen(["sleep", "600"], preexec_fn=cgroup.enter, start_new_session=True) as sleeper:
        cgroup.end()
        assert sleeper.wait(30) == -9
    assert not cgroup.folder.exists()
