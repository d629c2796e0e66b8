"""The lines of `az`, `docker`, `journalctl`, `kubectl` and `systemctl` in the documents name only what there is.

That is what templates, manifests, the unit and the image have.

infra/check/lines.py looks. None of them is run: there is no subscription and no cluster here. `tests/prove/lines.py`
has `az` and `kubectl` themselves parse them.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from infra.check.bicep import Expression, Literal, Object, parse
from infra.check.lines import Lines
from samza_azure import cli

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
DOCUMENTED = Lines(ROOT)
LINES = sorted(DOCUMENTED.found)
EXAMPLE = DOCUMENTED.example
MANIFESTS = DOCUMENTED.manifests
unknown = DOCUMENTED.unknown


def test_there_are_lines_to_look_at() -> None:
    assert {line.split()[0] for line in LINES} == {"az", "docker", "journalctl", "kubectl", "systemctl"}
    assert len(LINES) >= 15


@pytest.mark.parametrize("line", LINES)
def test_a_line_names_what_there_is(line: str) -> None:
    assert unknown(line) == []


def test_a_command_in_a_container_is_one_that_the_program_takes() -> None:
    inner = re.findall(r'--command "samza-azure (\w+) ([^"]+)"', "\n".join(LINES))
    assert inner
    for name, arguments in inner:
        cli._loaded(name).make_context(name, shlex.split(arguments))


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
    [module, *_of_workers] = [each for each in DOCUMENTED.main.modules.values() if each.path == f"{template}.bicep"]
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
    passed = DOCUMENTED.main.modules["identity"].body.entries["params"]
    assert isinstance(passed, Object)
    name = passed.entries["identityName"]
    assert (
        isinstance(name, Expression)
        and name.text.strip("'").replace("${name}", EXAMPLE["name"]) == (DOCUMENTED.az["identity show"])
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
