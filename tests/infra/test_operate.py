"""docs/operate.md keeps what it promises: its commands exist, and so does each section that an alert links to."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from azure.identity import AzureAuthorityHosts
from azure.identity._constants import EnvironmentVariables

from infra.check.bicep import Expression, Literal, Object, parse, values_in
from samza_azure import Config, cli
from samza_azure.metrics import instruments

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operate.md").read_text()
TEMPLATES = [parse(path) for path in sorted((ROOT / "infra" / "azure").glob("*.bicep"))]
COMMANDS = sorted(set(re.findall(r"(?:^ *|`)(samza-azure [^`\n]+)", TEXT, re.MULTILINE)))
ANCHORS = {
    re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
    for title in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
}


def texts() -> list[str]:
    """All texts of the templates, those with something to be filled in as well."""
    bodies = [
        body
        for file in TEMPLATES
        for body in (*file.variables.values(), *(each.body for each in file.resources.values()))
    ]
    found = [value for body in bodies for value in values_in(body)]
    return [
        str(each.value) if isinstance(each, Literal) else each.text
        for each in found
        if isinstance(each, Literal | Expression)
    ]


def test_there_are_commands_to_look_at() -> None:
    assert {shlex.split(each)[1] for each in COMMANDS} >= {"status", "drain", "stop", "export", "produce", "explain"}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_the_program_takes(line: str) -> None:
    """Name, arguments and options are read as they would be; nothing is run."""
    _, name, *arguments = shlex.split(line)
    cli._loaded(name).make_context(name, arguments)


def test_a_command_that_it_would_not_take_is_seen() -> None:
    with pytest.raises(Exception, match="No such option: --force"):
        cli._loaded("drain").make_context("drain", ["job.toml", "--force"])


def test_a_command_finds_the_account_by_the_variable_that_the_page_sets(tmp_path: Path) -> None:
    found = re.search(r"`export (\w+)=(\S+)`", TEXT)
    assert found is not None
    text = (ROOT / "infra" / "README.md").read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "job.toml").write_text(f'app = {{ name = "flights", main = "none:none" }}\n{text}')
    config = Config.load(tmp_path / "job.toml", environment={found[1]: found[2]})
    manifest = (ROOT / "infra" / "kubernetes" / "fleet.yaml").read_text()
    assert config.storage.account == found[2] and f"value: {found[2]}\n" in manifest


def test_the_authorities_and_variables_of_identities_are_those_of_the_sdk() -> None:
    """They were written from memory."""
    named = {AzureAuthorityHosts.AZURE_GOVERNMENT, AzureAuthorityHosts.AZURE_CHINA}
    assert set(re.findall(r"`(login\.[\w.]+)`", TEXT)) == named
    for name in (EnvironmentVariables.AZURE_AUTHORITY_HOST, EnvironmentVariables.IDENTITY_ENDPOINT):
        assert f"`{name}`" in TEXT


def started() -> dict[str, list[str]]:
    """What each template runs, after the name of the program."""
    infra = ROOT / "infra"
    unit = (infra / "systemd" / "samza-azure@.service").read_text()
    image = (infra / "image" / "Dockerfile").read_text()
    deployments = [
        each
        for each in yaml.safe_load_all((infra / "kubernetes" / "fleet.yaml").read_text())
        if each["kind"] == "Deployment"
    ]
    apps = [each for file in TEMPLATES for each in file.resources.values() if each.type.endswith("/containerApps")]
    written = [
        value.entries["args"]
        for app in apps
        for value in values_in(app.body)
        if isinstance(value, Object) and "args" in value.entries
    ]
    return {
        "unit": shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])[1:],
        "image": json.loads(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[0]),
        "Kubernetes": deployments[0]["spec"]["template"]["spec"]["containers"][0]["args"],
        "Container Apps": [str(each.value) for each in values_in(written[0]) if isinstance(each, Literal)],
    }


def test_the_commands_of_the_templates_are_commands_of_the_program() -> None:
    """All of them keep running after a drain, since the orchestrator would start them again."""
    for where, (name, *arguments) in started().items():
        context = cli._loaded(name).make_context(name, list(arguments))
        assert context.params["wait_for_upgrade"] is True, where


def test_the_units_of_a_cluster_run_commands_of_the_program() -> None:
    for role, option in (("worker", "azure_notices"), ("master", "host")):
        unit = (ROOT / "infra" / "systemd" / f"samza-azure-{role}@.service").read_text().replace("\\\n", " ")
        [line] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("/opt/samza-azure/bin/samza-azure", role)
        assert cli._loaded(name).make_context(name, arguments).params[option]


def test_the_pods_of_executors_run_a_command_of_the_program_and_end_with_one_of_the_image() -> None:
    assert "executor" in cli.COMMANDS
    assert (ROOT / "infra" / "image" / "decom.sh").stat().st_mode & 0o111
    assert "!infra/image/decom.sh" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_image_is_started_as_it_was_tried() -> None:
    """With its own command, and with room where its job file keeps things: the rest of its root is read-only."""
    image, volume = (
        started()["image"],
        re.findall(r'^VOLUME \["(.*)"\]$', (ROOT / "infra" / "image" / "Dockerfile").read_text(), re.MULTILINE),
    )
    assert started()["Kubernetes"] == started()["Container Apps"] == image
    written = "\n".join(
        (ROOT / "infra" / path).read_text() for path in ("azure/container-apps.bicep", "kubernetes/fleet.yaml")
    )
    assert set(re.findall(r"mountPath: '?([/\w]+)", written)) == {*volume, "/tmp"}


def test_each_alert_links_a_section() -> None:
    linked = set(re.findall(r"\$\{runbook\}#([\w-]+)", "\n".join(texts())))
    rules = {
        str(value.entries["name"].value)
        for file in TEMPLATES
        for body in file.variables.values()
        for value in values_in(body)
        if hasattr(value, "entries") and "query" in value.entries
    }
    assert "storage-slow" in linked and "no-leader" in rules
    assert (linked | rules) - ANCHORS == set()


def test_each_link_within_the_page_leads_somewhere() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) - ANCHORS == set()


def test_each_metric_that_an_alert_asks_for_is_one_of_ours() -> None:
    asked = set(re.findall(r'Name == "(samza_azure\.[\w.]+)"', "\n".join(texts())))
    ours = set(re.findall(r'"(samza_azure\.[\w.]+)"', Path(instruments.__file__).read_text()))
    assert asked and asked - ours == set()
