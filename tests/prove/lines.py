"""The lines of `az` and `kubectl` in the documents, parsed by the programs themselves. Nothing is sent to anybody.

`az` is installed from PyPI into a folder of its own, which takes half a gigabyte, and its parser reads each line. A
command, option or choice that it does not know, or an option that is missing, ends this with 1. `kubectl`, if there is
one, gets the address of a server that nobody listens to: it reads its line before it calls. It also changes the image
in the manifests, which needs no server. `tests/infra/test_lines.py` says which lines there are, and whether what they
name exists.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.infra.test_lines import EXAMPLE, LINES, MANIFESTS  # noqa: E402  (needs the path above)

AZURE_CLI = "azure-cli==2.91.0"
#: Run by the Python that has `az`. Its parser ends the process with 2 at the first thing that it does not know.
PARSE = """
import sys
from azure.cli.core import get_default_cli

cli, words = get_default_cli(), sys.argv[1:]
asked = cli.invocation_cls(
    cli_ctx=cli, parser_cls=cli.parser_cls, commands_loader_cls=cli.commands_loader_cls, help_cls=cli.help_cls
)
cli.invocation, loader = asked, asked.commands_loader
loader.load_command_table(words)
command = asked._rudimentary_get_command(words)
asked.data["command_string"] = command
loader.load_arguments(command)
if command in loader.command_table:
    loader.command_table = {command: loader.command_table[command]}
asked.parser.cli_ctx = cli
asked.parser.load_command_table(loader)
asked.parser.parse_args(words)
"""
#: What they must refuse, or they have read nothing.
WRONG = (
    "az vmss scale --resource-group flights --name flights --new-capacity 5 --fast",
    "az vmss scale --resource-group flights --new-capacity 5",
    "az containerapp updat --resource-group flights --name flights",
    "kubectl --namespace samza-azure scale deployment/flights --replica 5",
    "kubectl --namespace samza-azure sets image deployment/flights processor=a:2",
)
NOBODY = "http://127.0.0.1:1"


def main() -> int:
    lines = [line for line in LINES if line.startswith(("az ", "kubectl "))]
    if shutil.which("kubectl") is None:
        print("There is no kubectl here, so its lines are not parsed.")
        lines = [line for line in lines if line.startswith("az")]
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder))
        environment = {**os.environ, "AZURE_CONFIG_DIR": f"{folder}/azure", "AZURE_CORE_COLLECT_TELEMETRY": "0"}

        def refused(line: str) -> str:
            program, *words = shlex.split(line)
            if program == "az":
                command = [python, "-c", PARSE, *words]
            else:
                command = ["kubectl", "--kubeconfig", os.devnull, "--server", NOBODY, *words]
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
            if done.returncode == 0 or (program == "kubectl" and "refused" in done.stderr):
                return ""
            return done.stderr.strip() or f"exit code {done.returncode}"

        found = {line: refused(line) for line in lines}
        overlooked = [
            line for line in WRONG if line.split()[0] in {each.split()[0] for each in lines} and not refused(line)
        ]
    for line, why in found.items():
        print(f"{'REFUSED' if why else 'parsed'}: {line}\n{why}".rstrip(), flush=True)
    for line in overlooked:
        print(f"NOT REFUSED, and wrong: {line}")
    if any(line.startswith("kubectl") for line in lines):
        print("kubectl set image, on the manifests:", *images())
    return int(any(found.values()) or bool(overlooked))


def installed(folder: Path) -> str:
    """The Python of an environment that has `az`; SAMZA_AZURE_AZ names one that exists."""
    if ready := os.environ.get("SAMZA_AZURE_AZ"):
        return ready
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", AZURE_CLI], check=True)
    return python


def images() -> list[str]:
    """What `set image` makes of the Deployment in the manifests."""
    [line] = [line for line in LINES if " set image " in line]
    change = shlex.split(line)[-1]
    deployment = yaml.safe_dump(MANIFESTS["Deployment", EXAMPLE["name"]])
    command = ["kubectl", "set", "image", "--local", "--filename", "-", change, "--output", "yaml"]
    told = subprocess.run(command, input=deployment, check=True, capture_output=True, text=True).stdout
    assert f"image: {change.partition('=')[2]}" in told, told
    return [each.strip() for each in told.splitlines() if "image:" in each]


if __name__ == "__main__":
    sys.exit(main())
