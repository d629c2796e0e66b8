"""Builds the image without a container daemon, and runs it as a cluster would: `make image`. As root, on Linux.

Needed, all in Debian: buildah, mmdebstrap, runc. The base is made from Debian's packages and gets the name that the
Dockerfile knows it by, so the same Dockerfile builds here and wherever there is a registry. What is tried is the image
after a round trip through a registry's format, since a layer keeps whole seconds of a file's time.

Shown, each line with what it found: the size, by part; a processor as a user without rights, on a read-only root, in
2 GiB, with a host name that does not resolve: joins, maps the trained classes, is healthy by the image's HEALTHCHECK,
ends with 0 at SIGTERM; rows exactly once although one of two is killed. And pods of executors, of a processor of this
repository's code (`tests/prove/pods.py`).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("SAMZA_AZURE_IMAGE", ROOT / "build" / "image")).absolute()
BASE, NAME = "docker.io/library/debian:bookworm-slim", "samza-azure"
TOOLS = ("buildah", "mmdebstrap", "runc")
#: What Debian's own slim images leave out.
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/lintian/*")
MEMORY = 2 << 30
SIZE_MB = 1_100
USER = 10_001
ROWS = 100_000
PATIENCE_S = 300.0


def main() -> int:
    """All of it, in order; 1 if something is not as it should be."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        print(f"make image needs {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(missing)}")
        return 2
    if os.geteuid() != 0:
        print("make image mounts file systems and makes namespaces: run it as root.")
        return 2
    HOME.mkdir(parents=True, exist_ok=True)
    make_base()
    build()
    root = round_trip()
    with tempfile.TemporaryDirectory(prefix="samza-azure-image-") as folder:
        found = [sized(root), *tried(root, Path(folder)), computes(root)]
    print(f"{sum(found)} passed, {len(found) - sum(found)} failed")
    return 0 if all(found) else 1


def make_base() -> None:
    """A minimal Debian under the name of the official one, if there is none yet."""
    if subprocess.run([*store("first"), "inspect", "--type", "image", BASE], capture_output=True).returncode == 0:
        return
    say("Debian from its packages")
    leave_out = [option for path in SLIM for option in ("--dpkgopt", f"path-exclude={path}")]
    archive = HOME / "base.tar"
    sources = [
        f"deb http://deb.debian.org/{each} main" for each in ("debian bookworm", "debian-security bookworm-security")
    ]
    sh("mmdebstrap", "--quiet", "--variant=minbase", *leave_out, "bookworm", str(archive), *sources)
    container = sh(*store("first"), "from", "scratch")
    sh(*store("first"), "add", "--quiet", container, str(archive), "/")
    sh(*store("first"), "commit", "--quiet", "--format", "docker", "--rm", container, BASE)
    archive.unlink()


def build() -> None:
    """The Dockerfile as it is. pip uses the certificates that this machine trusts."""
    say("The image from the Dockerfile")
    settings = HOME / "pip.conf"
    settings.write_text("[global]\ncert = /run/certificates.crt\ntimeout = 180\n")
    trusted = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    mounts = ["-v", f"{settings}:/etc/pip.conf:ro", "-v", f"{trusted}:/run/certificates.crt:ro"]
    # The docker format, or HEALTHCHECK would be dropped.
    how = ["bud", "--isolation", "chroot", "--pull-never", "--layers", "--format", "docker", *mounts]
    log = HOME / "build.log"
    with log.open("w") as output:
        command = [*store("first"), *how, "-f", str(ROOT / "infra" / "image" / "Dockerfile"), "-t", NAME, str(ROOT)]
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-30:]))
        raise SystemExit(f"The build failed with {done.returncode}; all of it is in {log}.")


def round_trip() -> Path:
    """The image as another machine would pull it; where its files are."""
    say("To a registry's format and back")
    shutil.rmtree(HOME / "oci", ignore_errors=True)
    sh(*store("first"), "push", "--quiet", NAME, f"oci:{HOME}/oci:{NAME}")
    packed = sum(path.stat().st_size for path in (HOME / "oci").rglob("*") if path.is_file())
    print(f"   {packed // 1_000_000:,} MB compressed")
    for old in sh(*store("second"), "containers", "--quiet").split():
        sh(*store("second"), "rm", old)
    container = sh(*store("second"), "from", "--pull-always", f"oci:{HOME}/oci:{NAME}")
    return Path(sh(*store("second"), "mount", container))


def sized(root: Path) -> bool:
    """How large it is unpacked, and which parts make it so."""
    packages = "opt/samza-azure/lib/python3.11/site-packages"
    parts = ("usr", "usr/lib/jvm", "opt/cache", packages, f"{packages}/pyspark/jars", f"{packages}/pyarrow")
    print("".join(f"   {megabytes(root / part):5d} MB {part}\n" for part in parts), end="")
    total = megabytes(root)
    return told(f"{total:,} MB unpacked, at most {SIZE_MB:,}", total <= SIZE_MB)


def tried(root: Path, folder: Path) -> list[bool]:
    """A processor is tried alone, then two on rows of which one is killed."""
    from samza_azure.commands.azurite.emulator import Azurite

    say("Under runc")
    with Azurite().start() as azurite:
        job = Job(folder, azurite.connection_string)
        one = Container(root, folder, "one", job)
        found = []
        try:
            one.wait_for("both tasks run", lambda: job.running() == 2)
            found.append(told("joins and runs its tasks, as a user without rights on a read-only root", True))
            maps = [path.read_text() for path in Path("/proc").glob("[0-9]*/maps") if is_ours(path, one.pid)]
            found.append(
                told("the trained classes are mapped", any("/opt/cache/samza-azure/classes-" in each for each in maps))
            )
            found.append(told("the image's HEALTHCHECK finds it healthy", one.run(*healthcheck()) == 0))
            begun = time.monotonic()
            one.kill(signal.SIGTERM)
            code = one.wait()
            took = time.monotonic() - begun
            found.append(told(f"SIGTERM: exit code {code} after {took:.1f} s, at most 10", code == 0 and took < 10))
        finally:
            one.end()
        first, second = Container(root, folder, "first", job), Container(root, folder, "second", job)
        try:
            first.wait_for("both own a task", lambda: job.owners() == {"first", "second"})
            produced = job.produce(ROWS)
            first.kill(signal.SIGKILL)
            second.wait_for("the other one runs both tasks", lambda: job.owners() == {"second"} and job.running() == 2)
            found.append(told("SIGKILL: the other one takes over", True))
            job.drain()
            found.append(told(f"{ROWS} rows, each exactly once", job.exported() == produced))
        finally:
            first.end()
            second.end()
    return found


def computes(root: Path) -> bool:
    """The image is that of executors, too."""
    say("As the pods of executors, under runc")
    said = HOME / "config.json"
    said.write_text(json.dumps(config()))
    code = subprocess.run([sys.executable, str(ROOT / "tests" / "prove" / "pods.py"), str(root), str(said)]).returncode
    return told("computes as the pods of executors: they are killed, evicted, and lose their processor", code == 0)


def config() -> dict[str, Any]:
    """What the image says of its containers."""
    said = json.loads(sh(*store("first"), "inspect", "--type", "image", NAME))
    found: dict[str, Any] = said["Docker"]["config"]
    return found


def healthcheck() -> list[str]:
    """The command of the image; a registry's format does not have it."""
    kind, *command = config()["Healthcheck"]["Test"]
    assert kind == "CMD", kind
    return list(command)


class Job:
    """One stage over two partitions, with state in RocksDB, whose library is native; and the commands on it."""

    TEXT = """
app = {{ name = "image", main = "pipeline:app" }}
azure.storage.connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
streams.numbers = {{ partitions = 2, schema = "number bigint", key = "number" }}
processor.dir = "{directory}"
processor.port = 8080
task.state = "rocksdb"
"""
    PIPELINE = """
from samza_azure import Application

app = Application()


@app.stage("numbers", output="distinct")
def distinct(numbers):
    return numbers.dropDuplicates(["number"])
"""

    def __init__(self, folder: Path, connect: str) -> None:
        self.folder, self.connect = folder, connect
        self.inside, outside = folder / "job", folder / "outside"
        for place, directory in ((self.inside, "/var/lib/samza"), (outside, str(folder / "state"))):
            place.mkdir()
            (place / "job.toml").write_text(self.TEXT.format(directory=directory))
            (place / "pipeline.py").write_text(self.PIPELINE)
        self.file = outside / "job.toml"
        self.create()
        folder.chmod(0o755)

    def create(self) -> None:
        """Container and table, as the templates do; `status` is asked for before a processor has made them."""
        from samza_azure.config import Config
        from samza_azure.storage.connection import Account

        environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": self.connect}
        account = Account.from_config(Config.load(self.file, environment=environment).storage)
        account.ensure_created()
        account.close()

    def command(self, name: str, *arguments: str) -> str:
        """A command of this repository's own code, outside the container."""
        environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": self.connect, "PYTHONPATH": str(ROOT)}
        return sh(sys.executable, "-m", "samza_azure", name, str(self.file), *arguments, env=environment)

    def tasks(self) -> list[dict[str, Any]]:
        """As `status` has them."""
        return list(json.loads(self.command("status", "--json"))["tasks"])

    def running(self) -> int:
        """How many tasks run."""
        return sum(task["phase"] == "RUNNING" for task in self.tasks())

    def owners(self) -> set[str]:
        """The processors that have a task."""
        return {task["owner"] for task in self.tasks()}

    def produce(self, rows: int) -> list[int]:
        """The numbers from 0 on into the source."""
        numbers = list(range(rows))
        path = self.folder / "numbers.jsonl"
        path.write_text("".join(f'{{"number": {number}}}\n' for number in numbers))
        self.command("produce", "numbers", str(path), "--key", "number")
        return numbers

    def drain(self) -> None:
        """To the end of everything that was produced."""
        self.command("drain", "--wait", "--timeout", str(PATIENCE_S))

    def exported(self) -> list[int]:
        """The numbers that came out, in order."""
        import pyarrow.parquet as pq

        self.command("export", "distinct", "--to", str(self.folder / "distinct.parquet"))
        found: list[int] = pq.read_table(self.folder / "distinct.parquet")["number"].to_pylist()
        return sorted(found)


class Container:
    """The image under runc, with nothing that it does not need."""

    def __init__(self, root: Path, folder: Path, name: str, job: Job) -> None:
        self.name, bundle = name, folder / name
        bundle.mkdir()
        self.log = bundle / "log"
        scratch = bundle / "scratch"  # on a disk, as a cluster has it: a tmpfs would count as the container's memory
        scratch.mkdir()
        os.chown(scratch, USER, USER)
        (bundle / "config.json").write_text(json.dumps(self.specification(root, job, name, scratch)))
        self.process = subprocess.Popen(
            ["runc", "run", "--bundle", str(bundle), f"samza-azure-{name}"],
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
        )

    def specification(self, root: Path, job: Job, name: str, scratch: Path) -> dict[str, Any]:
        """As the Dockerfile says, and what a cluster adds."""
        private = ["nosuid", "noexec", "nodev"]
        environment = {
            "PATH": "/opt/samza-azure/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/var/lib/samza",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "MALLOC_ARENA_MAX": "4",
            "XDG_CACHE_HOME": "/opt/cache",
            "AZURE_STORAGE_CONNECTION_STRING": job.connect,
        }
        return {
            "ociVersion": "1.0.2",
            "hostname": "has-no-address",
            "root": {"path": str(root), "readonly": True},
            "process": {
                "user": {"uid": USER, "gid": USER},
                "cwd": "/job",
                "args": ["tini", "--", "samza-azure", "run", "/job/job.toml", "--id", name],
                "env": [f"{key}={value}" for key, value in environment.items()],
                "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
                "noNewPrivileges": True,
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*private, "mode=1777"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*private, "ro"]},
                {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": [*private, "ro"]},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*private, "mode=1777"]},
                {"destination": "/var/lib/samza", "type": "bind", "source": str(scratch), "options": ["rbind", "rw"]},
                {"destination": "/job", "type": "bind", "source": str(job.inside), "options": ["rbind", "ro"]},
            ],
            "linux": {
                # The network is this machine's, where the emulator listens.
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")],
                "resources": {"memory": {"limit": MEMORY}},
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
            },
        }

    @property
    def pid(self) -> int:
        """Of tini, as this machine counts."""
        return int(json.loads(sh("runc", "state", f"samza-azure-{self.name}"))["pid"])

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Until it holds; otherwise what the container said."""
        until = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > until or self.process.poll() is not None:
                print(self.log.read_text(errors="replace")[-3000:])
                raise SystemExit(f"In {self.name}: {what} did not come about.")
            time.sleep(0.5)  # the pace of asking

    def run(self, *command: str) -> int:
        """The exit code of a command in it."""
        return subprocess.run(["runc", "exec", f"samza-azure-{self.name}", *command], timeout=PATIENCE_S).returncode

    def kill(self, number: signal.Signals) -> None:
        """A signal to the whole container if it is SIGKILL, otherwise to tini, as a cluster sends it."""
        every = ["--all"] if number is signal.SIGKILL else []
        sh("runc", "kill", *every, f"samza-azure-{self.name}", str(int(number)))

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Leave nothing behind."""
        subprocess.run(["runc", "delete", "--force", f"samza-azure-{self.name}"], capture_output=True)
        self.process.wait(PATIENCE_S)


def is_ours(maps: Path, tini: int) -> bool:
    """Is this a process below tini?"""
    number = int(maps.parent.name)
    while number > 1:
        if number == tini:
            return True
        try:
            found = re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{number}/status").read_text(), re.MULTILINE)
        except OSError:
            return False
        number = int(found[1]) if found else 0
    return False


def store(name: str) -> list[str]:
    """buildah with a store of our own; the second one stands for another machine."""
    return ["buildah", "--root", f"{HOME}/{name}", "--runroot", f"{HOME}/{name}-run", "--storage-driver", "overlay"]


def megabytes(path: Path) -> int:
    """Millions of bytes, as `du` counts them on this file system."""
    return int(sh("du", "-xs", "--block-size=1000000", str(path)).split()[0])


def sh(*command: str, env: dict[str, str] | None = None) -> str:
    """What a command prints. If it fails, what it says ends us."""
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:6])} … failed with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout.strip()


def say(text: str) -> None:
    """What is done next."""
    print(f"== {text}", flush=True)


def told(text: str, holds: bool) -> bool:
    """Say what was found."""
    print(f"   {'ok ' if holds else 'NOT'} {text}", flush=True)
    return holds


if __name__ == "__main__":
    sys.exit(main())
