"""`python -m infra.check`: all findings, one a line; 1 if there are any."""

import os
import sys
from pathlib import Path

from infra.check import across, alerts, fleet, kql, limits, modules, network, prometheus, rules
from infra.check.bicep import File, Finding, parse
from infra.check.lines import Lines
from infra.check.types import Types

HERE = Path(__file__).parents[1]
#: Where Bicep's type data is, if it is anywhere: beside the repository, as the project's own machines have it.
TYPES = Path(os.environ.get("SAMZA_AZURE_TYPES", HERE.parent / ".." / "shared" / "azure" / "types.json"))


def templates(changed: dict[str, str] | None = None, here: Path = HERE) -> dict[str, File]:
    """The templates by name, with other texts where they are `changed`."""
    return {path.name: parse(path, (changed or {}).get(path.name)) for path in sorted((here / "azure").glob("*.bicep"))}


def findings(files: dict[str, File], types: Types | None, here: Path = HERE) -> tuple[list[Finding], set[str]]:
    """What is wrong with the templates, and the resources whose types are unknown here."""
    unknown: set[str] = set()
    found: list[Finding] = []
    for file in files.values():
        if types is not None:
            unknown.update(types.check(file, files))
        found += [*file.findings, *modules.check(file, files), *limits.check(file), *network.check(file)]
    written = (here / "prometheus" / "rules.yml").read_text()
    return [*found, *rules.check(files), *alerts.check(files, written)], unknown


def main() -> int:
    """Check everything and say what was checked."""
    types = Types(TYPES) if TYPES.exists() else None
    files = templates()
    found, unknown = findings(files, types)
    if types is None:
        print(f"infra: {len(files)} templates read. Types were not checked: {TYPES.name} is not on this machine.")
    else:
        print(f"infra: {len(files)} templates checked against the types of {types.source.partition(' ')[0]}.")
        print(f"infra: not in that data, so not compared: {', '.join(sorted(unknown))}.")
    if kql.is_installed():
        found += kql.check(files)
        print("infra: the queries of alerts as the Kusto language service reads them.")
    else:
        print("infra: queries were not read: the Kusto language service is not installed (python -m infra.check.kql).")
    if prometheus.find() is not None:
        found += prometheus.check()
        print("infra: the rules of alerts and their tests, by promtool.")
    else:
        print("infra: the rules of alerts were not tried: promtool is not here (python -m infra.check.prometheus).")
    found += across.check(across.read(HERE.parent))
    print("infra: what the unit, the manifests, the image and the templates say of the same thing.")
    found += Lines(HERE.parent).check()
    print("infra: the lines of az, docker, kubectl and systemctl in the documents.")
    for what, more in fleet.checks():
        print(f"infra: {what}")
        found += more
    for each in found:
        print(each, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
