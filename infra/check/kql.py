"""The queries of alerts, read by the language service that Azure's own editors use.

`python -m infra.check.kql` installs it. It is one package of npm, with its checksum in kusto/package-lock.json, and
none of its scripts is run.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.check.bicep import File, Finding, Literal, Object, values_in

__all__ = ["check", "install", "is_installed"]

PACKAGES = Path(__file__).with_name("kusto")
#: Beside the packages of Python that the other checks need.
HOME = Path(sys.prefix) / "kusto"


def is_installed() -> bool:
    """Is there a language service, and the one that is asked for?"""
    lock = HOME / "package-lock.json"
    return lock.exists() and lock.read_bytes() == (PACKAGES / "package-lock.json").read_bytes()


def install() -> None:
    """Fetch it with npm. What has the name is complete."""
    from samza_azure.commands.azurite.emulator import find_node

    node = find_node()
    fresh = HOME.with_name("kusto.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(PACKAGES, fresh)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    search = f"{node.program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    subprocess.run([*node.npm, "ci", *options], cwd=fresh, env={**os.environ, "PATH": search}, check=True)
    shutil.rmtree(HOME, ignore_errors=True)
    fresh.rename(HOME)


def check(files: Mapping[str, File]) -> list[Finding]:
    """What is wrong with the queries in these templates."""
    queries = list(_queries(files))
    said = _answers([str(query.value) for _, query in queries])
    return [
        Finding(name, query.line, f"the query {query.value!r}: {text}")
        for (name, query), texts in zip(queries, said, strict=True)
        for text in texts
    ]


#: What the language service has said of a query. It takes seconds for all, and the tests ask of one change at a time.
_SAID: dict[str, list[str]] = {}


def _answers(queries: list[str]) -> list[list[str]]:
    """What the language service says of each; it is asked for what it has not been asked."""
    from samza_azure.commands.azurite.emulator import find_node

    if new := sorted({*queries} - _SAID.keys()):
        command = [find_node().program, PACKAGES / "kql.js", HOME]
        done = subprocess.run(command, input=json.dumps(new), capture_output=True, text=True, check=True)
        _SAID.update(zip(new, json.loads(done.stdout), strict=True))
    return [_SAID[query] for query in queries]


def _queries(files: Mapping[str, File]) -> Iterator[tuple[str, Literal]]:
    for file in files.values():
        for body in (*file.variables.values(), *(resource.body for resource in file.resources.values())):
            for value in values_in(body):
                if isinstance(value, Object) and isinstance(query := value.entries.get("query"), Literal):
                    yield file.name, query


if __name__ == "__main__":
    if not is_installed():
        install()
