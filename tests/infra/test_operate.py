"""docs/operate.md keeps what it promises: its commands exist, and so does each section that an alert links to."""

import re
import shlex
from pathlib import Path

import pytest

from infra.check.bicep import Expression, Literal, parse, values_in
from samza_azure import cli, metrics

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
    ours = set(re.findall(r'"(samza_azure\.[\w.]+)"', Path(metrics.__file__).read_text()))
    assert asked and asked - ours == set()
