"""Alerts on a live Prometheus: three processors without Spark, scraped every second, by the rules as shipped.

Shown: the leader counts a killed follower's tasks as not running within one timeout, and Prometheus has that within two
scrapes; a killed leader's failover fires nothing; after all are killed SamzaAzureNoLeader fires within 30 to 40 s.
Debian's `prometheus` is fetched if there is none. It takes about four minutes. `dashboard.py` asks for the panels,
since most of them need Spark.
"""

import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from infra.check.prometheus import RULES, find, install  # noqa: E402
from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402
from samza_azure.config import Config  # noqa: E402
from samza_azure.storage.connection import Account  # noqa: E402
from tests.fleet.group_members import JOB, processes  # noqa: E402
from tests.fleet.healthy import live  # noqa: E402

TASKS, NAMES = 16, ("p0", "p1", "p2")
#: Of the profile that they use, and how often they are scraped.
TIMEOUT_S, SCRAPE_S = 8.0, 1.0
#: SamzaAzureNoLeader would fire within 40 s.
WATCHED_S = 60.0


class Prometheus:
    """A server of our own, which watches these ports."""

    def __init__(self, folder: Path, ports: dict[str, int], job: str = "fleet") -> None:
        (folder / "rules.yml").write_text((RULES / "rules.yml").read_text())
        jobs = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports.values()]}]}]
        config = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{SCRAPE_S:g}s"),
            "rule_files": ["rules.yml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.json").write_text(json.dumps(config))
        with multiprocessing.connection.Listener(("127.0.0.1", 0)) as any_port:
            self.port = int(any_port.address[1])
        command = [str(find("prometheus")), "--config.file=prometheus.json", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"]
        self.process = subprocess.Popen(command, cwd=folder)

    def get(self, path: str, **query: str) -> Any:
        """What its API answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def value(self, query: str) -> float | None:
        """Of a query with one value, now."""
        with suppress(OSError):
            found = self.get("query", query=query)["result"]
            return float(found[0]["value"][1]) if found else None
        return None

    def alerts(self) -> dict[str, str]:
        """The state of each alert that is pending or fires."""
        return {each["labels"]["alertname"]: each["state"] for each in self.get("alerts")["alerts"]}


def until(what: str, holds: Callable[[], bool], within_s: float) -> float:
    """How long it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() > begun + within_s:
            raise SystemExit(f"Not within {within_s:g} s: {what}")
        time.sleep(0.1)  # the pace of asking
    return time.monotonic() - begun


def start(name: str, job: str) -> tuple[Any, int, Any]:
    """A processor, where it listens, and what keeps its pipe open."""
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=live, args=(job, TASKS, there, name), daemon=True)
    process.start()
    there.close()
    return process, here.recv(), here


def main() -> None:
    """Everything above, and a line for each."""
    if not install():
        raise SystemExit("There is no prometheus here. On Debian run apt-get update first.")
    with Azurite() as emulator, tempfile.TemporaryDirectory() as folder:
        job = JOB.format(id=uuid.uuid4().hex[:8], connect=emulator.connection_string, profile="default")
        Account.from_config(Config.parse(job).storage).ensure_created()
        members = {name: start(name, job) for name in NAMES}
        ports = {name: port for name, (_, port, _) in members.items()}
        server = Prometheus(Path(folder), ports)
        try:
            show(server, {name: process for name, (process, _, _) in members.items()}, ports)
        finally:
            server.process.terminate()
            server.process.wait()
            for process, _, _ in members.values():
                process.kill()
                process.join()


def running_by(port: int) -> float:
    """How many tasks run, as the leader itself says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(r"^samza_azure_group_tasks_running\S* (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def show(server: Prometheus, members: dict[str, Any], ports: dict[str, int]) -> None:
    """Kill a follower, then the leader, then all."""
    running = "max(samza_azure_group_tasks_running)"
    until("all tasks run", lambda: server.value(running) == TASKS, 60)
    leader = server.get("query", query="samza_azure_leader == 1")["result"][0]["metric"]["processor"]
    # A processor that does not lead: a former leader that goes on reporting the group's tasks.
    killed = next(name for name in members if name != leader)
    members[killed].kill()
    seen = until("a killed owner's tasks are missing", lambda: running_by(ports[leader]) < TASKS, TIMEOUT_S * 2)
    print(f"a killed owner's tasks are counted as not running after {seen:.1f} s (timeout {TIMEOUT_S:g} s)")
    assert seen <= TIMEOUT_S, "later than its timeout"
    until("Prometheus has it", lambda: (server.value(running) or TASKS) < TASKS, 2 * SCRAPE_S)
    until("all run again", lambda: server.value(running) == TASKS, 60)
    members[leader].kill()
    led = f'sum(samza_azure_leader{{processor!="{leader}"}})'
    taken = until("another one leads", lambda: server.value(led) == 1, 60)
    fired: set[str] = set()

    def is_quiet() -> bool:
        fired.update(name for name, state in server.alerts().items() if state == "firing")
        return server.value(running) == TASKS

    until("all run again", is_quiet, 60)
    watched_until = time.monotonic() + WATCHED_S  # an alert fires some time after its condition began to hold
    until("the failover is long over", lambda: is_quiet() and time.monotonic() > watched_until, WATCHED_S + 10)
    print(f"a failover took {taken:.1f} s, and fired {', '.join(sorted(fired)) or 'nothing'}")
    assert not fired
    until("nothing is pending", lambda: "SamzaAzureNoLeader" not in server.alerts(), 60)
    for process in members.values():
        process.kill()
    killed_at = time.monotonic()
    until("the alert fires", lambda: server.alerts().get("SamzaAzureNoLeader") == "firing", 60)
    took = time.monotonic() - killed_at
    print(f"all killed: SamzaAzureNoLeader fires after {took:.1f} s")
    assert 30 <= took <= 40


if __name__ == "__main__":
    main()
