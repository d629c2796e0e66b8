"""A container that the kernel kills for want of memory: its processor says so, and starts the next one.

It runs a processor in a cgroup of its own with little memory and without swap, whose pipeline takes all that there is.
Needs root and a machine whose cgroups may be made.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402

LIMIT_MIB = 900
JOB = """
app = {{ name = "greedy", id = "{id}", main = "pipeline:app" }}
azure.storage.connect = "{connect}"
processor.dir = "{directory}/state"
"""
PIPELINE = """
held = []
while True:
    held.append(b"x" * (16 << 20))
"""


def cgroup() -> tuple[Path, dict[str, int]]:
    """A new one with the limit, and the files that say so."""
    name = f"samza-azure-{os.getpid()}"
    version_1 = Path("/sys/fs/cgroup/memory")
    if version_1.exists():
        return version_1 / name, {"memory.limit_in_bytes": LIMIT_MIB << 20}
    return Path("/sys/fs/cgroup") / name, {"memory.max": LIMIT_MIB << 20, "memory.swap.max": 0}


def main() -> None:
    """Until it has said so twice: the next container was started, and the supervisor lives."""
    folder, limits = cgroup()
    folder.mkdir()
    try:
        for name, value in limits.items():
            (folder / name).write_text(str(value))
        with Azurite() as emulator, tempfile.TemporaryDirectory() as directory:
            job = Path(directory) / "job.toml"
            job.write_text(JOB.format(id=uuid.uuid4().hex[:8], connect=emulator.connection_string, directory=directory))
            (Path(directory) / "pipeline.py").write_text(PIPELINE)
            command = [sys.executable, "-m", "samza_azure", "run", str(job), "--log-format", "json"]
            within = ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh", *command]
            with subprocess.Popen(within, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                seen = 0
                for line in process.stderr:
                    said = json.loads(line)["message"] if line.startswith("{") else line
                    if "the kernel killed it" in said and "the next one starts" in said:
                        print(said.strip())
                        seen += 1
                    if seen == 2:
                        break
                process.send_signal(signal.SIGTERM)
                process.stderr.read()
            assert seen == 2, "its processor ended, or never said so"
            assert process.returncode == 0
    finally:
        folder.rmdir()


if __name__ == "__main__":
    main()
