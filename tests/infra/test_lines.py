"""The lines of `az`, `docker`, `journalctl`, `kubectl` and `systemctl` in the documents name only what there is.

That is what templates, manifests, the unit and the image have.

None of them is run: there is no subscription and no cluster here. `tests/prove/lines.py` has `az` and `kubectl`
themselves parse them.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.check.bicep import Expression, File, Literal, Object, parse
from samza_azure import cli

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
WRITTEN = (
    "docs/operate.md",
    "infra/README.md",
    "infra/kubernetes/fleet.yaml",
    "infra/systemd/samza-azure@.service",
    "infra/azure/cloud-init.yaml",
)
PROGRAMS = r"(?:^ *|`|: )((?:az|docker|journalctl|kubectl|systemctl) [a-z-][^`\n]+)"
LINES = sorted(
    {
        line.strip()
        for path in WRITTEN
        for line in re.findall(PROGRAMS, (ROOT / path).read_text().replace("\\\n", " "), re.MULTILINE)
    }
)
MAIN = parse(INFRA / "azure" / "main.bicep")
MANIFESTS = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all((INFRA / "kubernetes" / "fleet.yaml").read_text())
}
INSTALLED = {
    each["path"]
    for each in yaml.safe_load(re.sub(r"{\w+}", "filled", (INFRA / "azure" / "cloud-init.yaml").read_text()))[
        "write_files"
    ]
}
#: The containers of storage.bicep that have a name of their own.
STORED = {
    name.value
    for each in parse(INFRA / "azure" / "storage.bicep").resources.values()
    if isinstance(name := each.body.entries["name"], Literal)
}
#: The example that all documents deploy, by the parameters of main.bicep.
EXAMPLE = dict(
    word.split("=", 1) for line in LINES if "what-if" in line for word in shlex.split(line) if re.match(r"\w+=", word)
)
#: What scale-set.bicep installs in the example.
RELEASE = "flights.tar.gz"
#: Each command, and what its option --name has to be.
AZ = {
    "login": None,
    "group create": "flights",
    "acr create": EXAMPLE["registryName"],
    "acr login": EXAMPLE["registryName"],
    "aks": "CLUSTER",
    "identity show": f"{EXAMPLE['name']}-processors",
    "containerapp exec": EXAMPLE["name"],
    "deployment group": None,
    "containerapp update": EXAMPLE["name"],
    "containerapp replica": EXAMPLE["name"],
    "containerapp logs": EXAMPLE["name"],
    "containerapp revision": EXAMPLE["name"],
    "vmss scale": EXAMPLE["name"],
    "vmss update": EXAMPLE["name"],
    "vm list": None,
    "vm run-command": "NAME",
    "storage container": EXAMPLE["containerName"],
    "storage blob": RELEASE,
}
#: Those that name the resource group.
GROUPED = ("deployment", "containerapp", "vmss", "vm", "aks", "identity")


def unknown(line: str) -> list[str]:
    """What a line names that is nowhere."""
    program, *words = shlex.split(line.split("||", maxsplit=1)[0])
    of = {"az": of_az, "docker": of_docker, "journalctl": of_unit, "kubectl": of_kubectl, "systemctl": of_systemctl}
    return list(of[program](words))


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


def of_az(words: list[str]) -> Iterator[str]:
    """Groups, names, files and parameters."""
    before, given = options(words)
    command = next((each for each in AZ if " ".join(before).startswith(each)), None)
    if command is None:
        yield f"az {' '.join(before)} is not known to go with the templates"
        return
    if before[0] in GROUPED and given.get("--resource-group") != ["flights"]:
        yield "the resource group is flights"
    if AZ[command] is not None and "--include-deleted" not in given and given.get("--name") != [AZ[command]]:
        yield f"--name is {AZ[command]} in {command}"
    if before[0] == "storage" and given.get("--account-name") != [EXAMPLE["accountName"]]:
        yield f"the account is {EXAMPLE['accountName']}"
    for path in given.get("--template-file", ()):
        if not (ROOT / path).exists():
            yield f"there is no {path}"
    for path in given.get("--scripts", ()):
        if path not in INSTALLED:
            yield f"no machine has {path}"
    for container in given.get("--container-name", ()):
        if container not in STORED:
            yield f"storage.bicep makes no container {container}"
    for line in given.get("--command", ()):
        yield from of_program(line)
    for image in given.get("--image", ()):
        yield from of_image(image)
    for name in ("--min-replicas", "--max-replicas"):
        if "0" in given.get(name, ()):
            yield f"{name} of an app is 1 at least here: without a rule of scale nothing would start a replica again"
    if command == "deployment group":
        path = ROOT / given.get("--template-file", [""])[0]
        yield from of_parameters(parse(path) if path.is_file() else MAIN, given.get("--parameters", []))


def of_parameters(template: File, values: list[str]) -> Iterator[str]:
    """Each one exists, and none that is needed is missing. A file may hold any."""
    names = {value.split("=", 1)[0] for value in values if not value.startswith("@")}
    needed = {name for name, each in template.parameters.items() if each.default is None}
    for name in sorted(names - template.parameters.keys()):
        yield f"{template.name} has no parameter {name}"
    if not any(value.startswith("@") for value in values):
        for name in sorted(needed - names):
            yield f"{template.name} needs the parameter {name}"


def of_program(line: str) -> Iterator[str]:
    """A command of samza-azure inside a container, with the job file that the container has."""
    _, name, *arguments = shlex.split(line)
    context = cli._loaded(name).make_context(name, arguments)
    if str(context.params["job"]) != "/job/job.toml":
        yield "the job file of a container is /job/job.toml"


def of_docker(words: list[str]) -> Iterator[str]:
    """The Dockerfile, and images of ours."""
    before, given = options(words)
    for path in given.get("--file", [])[:1]:
        if not (ROOT / path).exists():
            yield f"there is no {path}"
    for image in before[1:] or given.get("--tag", [])[:1]:
        if image != "samza-azure":
            yield from of_image(image)


def of_image(image: str) -> Iterator[str]:
    """With a tag, from the example's registry."""
    expected = EXAMPLE["image"].rpartition(":")[0]
    if image.rpartition(":")[0] != expected:
        yield f"the image is {expected}, with a tag"


def of_kubectl(words: list[str]) -> Iterator[str]:
    """Namespace, objects, containers and ports."""
    if words[0] == "apply":
        if not (ROOT / words[2]).exists():
            yield f"there is no {words[2]}"
        return
    if words[0] != "--namespace" or ("Namespace", words[1]) not in MANIFESTS:
        yield "the namespace of the manifests is missing"
        return
    verb, *rest = options(words[2:])[0]
    objects = [word for word in rest if "/" in word and "=" not in word]
    for kind, name in (each.split("/") for each in objects):
        if (kind.capitalize(), name) not in MANIFESTS:
            yield f"the manifests have no {kind} {name}"
            return
    if verb in ("set", "scale", "port-forward") and not objects:
        yield "no object is named"
        return
    for word in rest:
        containers = MANIFESTS["Deployment", EXAMPLE["name"]]["spec"]["template"]["spec"]["containers"]
        if "=" in word:
            name, image = word.split("=")
            if name not in {each["name"] for each in containers}:
                yield f"the pods have no container {name}"
            yield from of_image(image)
        if word.isdecimal() and int(word) not in {
            port["containerPort"] for each in containers for port in each["ports"]
        }:
            yield f"no container has the port {word}"


def of_systemctl(words: list[str]) -> Iterator[str]:
    """Units; an instance is one of the template unit."""
    if words[0] not in ("stop", "start", "restart", "enable", "daemon-reload"):
        yield f"systemctl {words[0]} is not known to be needed"
    yield from of_unit(words[1:])


def of_unit(words: list[str]) -> Iterator[str]:
    """Instances of a template unit of ours. A number is of lines of the log."""
    for unit in (word for word in words if not word.startswith("--") and not word.isdecimal()):
        name = unit.partition("@")[0]
        if "@" not in unit or not (INFRA / "systemd" / f"{name}@.service").exists():
            yield f"there is no unit {unit}"


def test_there_are_lines_to_look_at() -> None:
    assert {line.split()[0] for line in LINES} == {"az", "docker", "journalctl", "kubectl", "systemctl"}
    assert len(LINES) >= 15


@pytest.mark.parametrize("line", LINES)
def test_a_line_names_what_there_is(line: str) -> None:
    assert unknown(line) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("az deployment group what-if --resource-group flights --template-file main.bicep", "there is no main"),
        ("az deployment group create --resource-group flights --parameters account=a", "has no parameter account"),
        ("az deployment group create --resource-group flights --parameters name=a", "needs the parameter accountName"),
        ("az containerapp update --name flights --image flights.azurecr.io/flights:2", "the resource group is flights"),
        ("az containerapp update --resource-group flights --name fleet", "--name is flights"),
        ("az containerapp update --resource-group flights --name flights --image other/flights:2", "the image is"),
        ("az containerapp update --resource-group flights --name flights --max-replicas 0", "1 at least"),
        ("az deployment group create --template-file infra/azure/roles.bicep --parameters name=a", "no parameter name"),
        ("az containerapp exec --name flights --command 'samza-azure status job.toml'", "is /job/job.toml"),
        ("az storage blob upload --container-name release --name flights.tar.gz", "no container release"),
        ("az identity show --resource-group flights --name flights", "--name is flights-processors"),
        ("docker build --file infra/Dockerfile --tag samza-azure .", "there is no infra/Dockerfile"),
        ("docker push other/flights:1", "the image is"),
        ("az vmss run-command invoke --resource-group flights --name flights", "not known to go with the templates"),
        ("az vm run-command invoke --resource-group flights --name NAME --scripts /opt/install", "no machine has"),
        ("az storage container restore --account-name fleet --name flights-1", "the account is flightsfleet"),
        ("kubectl get pods", "namespace"),
        ("kubectl --namespace fleet get pods", "namespace"),
        ("kubectl --namespace samza-azure scale deployment/fleet --replicas 5", "no deployment fleet"),
        ("kubectl --namespace samza-azure set image deployment/flights app=flights.azurecr.io/flights:2", "no con"),
        ("kubectl --namespace samza-azure port-forward deployment/flights 9090", "no container has the port 9090"),
        ("kubectl apply --filename infra/fleet.yaml", "there is no infra/fleet.yaml"),
        ("systemctl stop samza@flights", "there is no unit samza@flights"),
        ("journalctl --unit samza@flights --lines 300", "there is no unit samza@flights"),
        ("systemctl halt samza-azure@flights", "not known to be needed"),
    ],
)  # fmt: skip
def test_a_line_that_names_something_else_is_seen(line: str, said: str) -> None:
    assert any(said in each for each in unknown(line)), unknown(line)


@pytest.mark.parametrize(
    ("template", "kind"), [("container-apps", "containerApps"), ("scale-set", "virtualMachineScaleSets")]
)
def test_app_and_scale_set_have_the_name_that_is_deployed(template: str, kind: str) -> None:
    """So `--name` in a line is the parameter `name` of main.bicep."""
    file = parse(INFRA / "azure" / f"{template}.bicep")
    [resource] = [each for each in file.resources.values() if each.type.endswith(f"/{kind}")]
    [module] = [each for each in MAIN.modules.values() if each.path == f"{template}.bicep"]
    passed = module.body.entries["params"]
    assert isinstance(passed, Object)
    for value in (resource.body.entries["name"], passed.entries["name"]):
        assert isinstance(value, Expression) and value.text == "name"


def test_the_file_of_parameters_says_what_the_line_says() -> None:
    text = (INFRA / "README.md").read_text().partition("```json\n")[2].partition("```")[0]
    given = {name: each["value"] for name, each in json.loads(text)["parameters"].items()}
    shown = {name: json.dumps(each) if isinstance(each, list) else str(each) for name, each in given.items()}
    assert shown == EXAMPLE


def test_the_identity_has_the_name_that_is_asked_for() -> None:
    passed = MAIN.modules["identity"].body.entries["params"]
    assert isinstance(passed, Object)
    name = passed.entries["identityName"]
    assert (
        isinstance(name, Expression)
        and name.text.strip("'").replace("${name}", EXAMPLE["name"]) == (AZ["identity show"])
    )


def test_a_machine_is_reached_by_its_own_name() -> None:
    """`az vmss run-command` takes the instances of uniform scale sets only; those of this one are plain machines."""
    file = parse(INFRA / "azure" / "scale-set.bicep")
    [machines] = [each for each in file.resources.values() if each.type.endswith("/virtualMachineScaleSets")]
    properties = machines.body.entries["properties"]
    assert isinstance(properties, Object)
    mode = properties.entries["orchestrationMode"]
    assert isinstance(mode, Literal) and mode.value == "Flexible"


def test_each_compute_can_be_stopped() -> None:
    """A scale of 0 where there is one. A machine whose processor stops is replaced unless repairs are suspended."""
    text = (ROOT / "docs" / "operate.md").read_text()
    section = text.partition("\n## Stop\n")[2].partition("\n## ")[0]
    written = [line for line in section.splitlines() if line.startswith(("az ", "kubectl ", "systemctl "))]
    verbs = [" ".join(line.split(" --resource-group flights --name flights ")) for line in written]
    assert "az containerapp revision deactivate --revision NAME" in verbs
    assert "az vmss scale --new-capacity 0" in verbs
    assert "kubectl --namespace samza-azure scale deployment/flights --replicas 0" in verbs
    suspended = verbs.index("az vmss update --enable-automatic-repairs false")
    assert verbs[suspended + 1] == "systemctl stop samza-azure@flights"
    assert "systemctl stop" not in "".join(line for line in section.splitlines() if line not in written)
