"""The lines of `az`, `docker`, `journalctl`, `kubectl` and `systemctl` in the documents name only what there is.

That is what templates, manifests, the unit and the image have. No line is run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.check.bicep import File, Finding, Literal, nearest, parse
from infra.check.documents import load_all

__all__ = ["DOCUMENTS", "Lines"]

#: The documents, from the root of the repository.
DOCUMENTS = (
    "docs/operate.md",
    "infra/README.md",
    "infra/kubernetes/fleet.yaml",
    "infra/systemd/samza-azure@.service",
    "infra/azure/cloud-init.yaml",
)
_PROGRAMS = r"(?:^ *|`|: )((?:az|docker|journalctl|kubectl|systemctl) [a-z-][^`\n]+)"
#: What scale-set.bicep installs in the example.
RELEASE = "flights.tar.gz"
#: Where the image has the job file.
JOB = "/job/job.toml"
#: What the lines of `az` have after their names: `tests/prove/lines.py` has `az` itself read them.
OPTIONS = {
    "--account-name",
    "--action",
    "--attach-acr",
    "--auth-mode",
    "--command",
    "--command-id",
    "--container-name",
    "--deleted-version",
    "--enable-automatic-repairs",
    "--file",
    "--follow",
    "--image",
    "--include-deleted",
    "--location",
    "--max-replicas",
    "--min-replicas",
    "--name",
    "--new-capacity",
    "--output",
    "--overwrite",
    "--parameters",
    "--query",
    "--replica",
    "--resource-group",
    "--revision",
    "--scripts",
    "--service-name",
    "--sku",
    "--tail",
    "--template-file",
    "--type",
}
#: Those that name the resource group.
GROUPED = ("deployment", "containerapp", "vmss", "vm", "aks", "identity")


class Lines:
    """The lines of the documents below a root, and what there is for them to name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        texts = {path: (root / path).read_text() for path in DOCUMENTS}
        #: Each line, with the document and the number of its first occurrence.
        self.found: dict[str, tuple[str, int]] = {}
        for path, text in texts.items():
            for match in re.finditer(_PROGRAMS, text.replace("\\\n", " "), re.MULTILINE):
                self.found.setdefault(match[1].strip(), (Path(path).name, text.count("\n", 0, match.start(1)) + 1))
        azure = root / "infra" / "azure"
        self.main = parse(azure / "main.bicep")
        documents = load_all(texts["infra/kubernetes/fleet.yaml"])
        self.manifests: dict[tuple[str, str], Any] = {
            (each["kind"], each["metadata"]["name"]): each for each in documents
        }
        machine = load_all(re.sub(r"{\w+}", "filled", texts["infra/azure/cloud-init.yaml"]))[0]
        self.installed = {each["path"] for each in machine["write_files"]}
        #: The containers of storage.bicep that have a name of their own.
        self.stored = {
            name.value
            for each in parse(azure / "storage.bicep").resources.values()
            if isinstance(name := each.body.entries.get("name"), Literal)
        }
        #: The example that all documents deploy, by the parameters of main.bicep.
        self.example = dict(
            word.split("=", 1)
            for line in self.found
            if "what-if" in line
            for word in shlex.split(line)
            if re.match(r"\w+=", word)
        )
        example = self.example
        #: Each command, and what its option --name has to be.
        self.az: Mapping[str, str | None] = {
            "login": None,
            "group create": "flights",
            "acr create": example["registryName"],
            "acr login": example["registryName"],
            "aks": "CLUSTER",
            "identity show": f"{example['name']}-processors",
            "containerapp exec": example["name"],
            "deployment group": None,
            "containerapp update": example["name"],
            "containerapp replica": example["name"],
            "containerapp logs": example["name"],
            "containerapp revision": example["name"],
            "vmss scale": example["name"],
            "vmss update": example["name"],
            "vmss get-instance-view": example["name"],
            "vmss set-orchestration-service-state": example["name"],
            "vm list": None,
            "vm run-command": "NAME",
            "storage container": example["containerName"],
            "storage blob": RELEASE,
        }

    def check(self) -> Iterator[Finding]:
        """Every line that names something else."""
        for line, (path, number) in self.found.items():
            for text in self.unknown(line):
                yield Finding(path, number, f"{text}: {line}")

    def unknown(self, line: str) -> list[str]:
        """What a line names that is nowhere."""
        program, *words = shlex.split(line.split("||", maxsplit=1)[0])
        of = {
            "az": self.of_az,
            "docker": self.of_docker,
            "journalctl": self.of_unit,
            "kubectl": self.of_kubectl,
            "systemctl": self.of_systemctl,
        }
        return list(of[program](words))

    def of_az(self, words: list[str]) -> Iterator[str]:
        """Groups, names, files and parameters."""
        before, given = options(words)
        command = next((each for each in self.az if " ".join(before).startswith(each)), None)
        if command is None:
            yield f"az {' '.join(before)} is not known to go with the templates"
            return
        if before[0] in GROUPED and given.get("--resource-group") != ["flights"]:
            yield "the resource group is flights"
        if (
            self.az[command] is not None
            and "--include-deleted" not in given
            and given.get("--name") != [self.az[command]]
        ):
            yield f"--name is {self.az[command]} in {command}"
        if before[0] == "storage" and given.get("--account-name") != [self.example["accountName"]]:
            yield f"the account is {self.example['accountName']}"
        for option in sorted(given.keys() - OPTIONS):
            yield f"az {command} has no {option} that this project uses{nearest(option, OPTIONS)}"
        for path in given.get("--template-file", ()):
            if not (self.root / path).exists():
                yield f"there is no {path}"
        for path in given.get("--scripts", ()):
            if path not in self.installed:
                yield f"no machine has {path}"
        for container in given.get("--container-name", ()):
            if container not in self.stored:
                yield f"storage.bicep makes no container {container}"
        for line in given.get("--command", ()):
            yield from self.of_program(line)
        for image in given.get("--image", ()):
            yield from self.of_image(image)
        if given.get("--min-replicas") != given.get("--max-replicas"):
            yield "the numbers of replicas should be the same: each change costs a start of Java"
        for name in ("--min-replicas", "--max-replicas"):
            if "0" in given.get(name, ()):
                yield f"{name} of an app is 1 at least here: nothing would start a replica again"
        if command == "deployment group":
            template = self.root / given.get("--template-file", [""])[0]
            file = parse(template) if template.is_file() else self.main
            yield from self.of_parameters(file, given.get("--parameters", []))

    def of_parameters(self, template: File, values: list[str]) -> Iterator[str]:
        """Each one exists, and none that is needed is missing. A file may hold any."""
        names = {value.split("=", 1)[0] for value in values if not value.startswith("@")}
        needed = {name for name, each in template.parameters.items() if each.default is None}
        for name in sorted(names - template.parameters.keys()):
            yield f"{template.name} has no parameter {name}"
        if not any(value.startswith("@") for value in values):
            for name in sorted(needed - names):
                yield f"{template.name} needs the parameter {name}"

    def of_program(self, line: str) -> Iterator[str]:
        """A command of samza-azure inside a container, with the job file that the container has."""
        if JOB not in shlex.split(line)[2:]:
            yield f"the job file of a container is {JOB}"

    def of_docker(self, words: list[str]) -> Iterator[str]:
        """The Dockerfile, and our own images."""
        before, given = options(words)
        for path in given.get("--file", [])[:1]:
            if not (self.root / path).exists():
                yield f"there is no {path}"
        for image in before[1:] or given.get("--tag", [])[:1]:
            if image != "samza-azure":
                yield from self.of_image(image)

    def of_image(self, image: str) -> Iterator[str]:
        """With a tag, from the example's registry."""
        expected = self.example["image"].rpartition(":")[0]
        if image.rpartition(":")[0] != expected:
            yield f"the image is {expected}, with a tag"

    def of_kubectl(self, words: list[str]) -> Iterator[str]:
        """Namespace, objects, containers and ports."""
        if words[0] == "apply":
            if not (self.root / words[2]).exists():
                yield f"there is no {words[2]}"
            return
        if words[0] != "--namespace" or ("Namespace", words[1]) not in self.manifests:
            yield "the namespace of the manifests is missing"
            return
        verb, *rest = options(words[2:])[0]
        objects = [word for word in rest if "/" in word and "=" not in word]
        for kind, name in (each.split("/") for each in objects):
            if (kind.capitalize(), name) not in self.manifests:
                yield f"the manifests have no {kind} {name}"
                return
        if verb in ("set", "scale", "port-forward") and not objects:
            yield "no object is named"
            return
        for word in rest:
            containers = self.manifests["Deployment", self.example["name"]]["spec"]["template"]["spec"]["containers"]
            if "=" in word:
                name, image = word.split("=")
                if name not in {each["name"] for each in containers}:
                    yield f"the pods have no container {name}"
                yield from self.of_image(image)
            if word.isdecimal() and int(word) not in {
                port["containerPort"] for each in containers for port in each["ports"]
            }:
                yield f"no container has the port {word}"

    def of_systemctl(self, words: list[str]) -> Iterator[str]:
        """Units; an instance is one of the template unit."""
        if words[0] not in ("stop", "start", "restart", "enable", "daemon-reload"):
            yield f"systemctl {words[0]} is not known to be needed"
        yield from self.of_unit(words[1:])

    def of_unit(self, words: list[str]) -> Iterator[str]:
        """Instances of one of our template units. A number is of lines of the log."""
        for unit in (word for word in words if not word.startswith("--") and not word.isdecimal()):
            name = unit.partition("@")[0].replace("{unitName}", "samza-azure")  # of a processor, or of a worker
            if "@" not in unit or not (self.root / "infra" / "systemd" / f"{name}@.service").exists():
                yield f"there is no unit {unit}"


def options(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The words before the first option, and the values of each option."""
    first = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    found: dict[str, list[str]] = {}
    for word in words[first:]:
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values.append(word)
    return words[:first], found
