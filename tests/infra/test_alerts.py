"""Rules of alerts and the dashboard name only metrics that there are, and sections of docs/operate.md that exist."""

import json
import re
from pathlib import Path

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from infra.check.prometheus import RULES, TESTS
from infra.prometheus.dashboard import dashboard, panels
from samza_azure.metrics.instruments import Instruments

ROOT = Path(__file__).parents[2]
WRITTEN = yaml.safe_load((RULES / "rules.yml").read_text())["groups"][0]["rules"]
ALERTS = [each for each in WRITTEN if "alert" in each]
RECORDED = {each["record"] for each in WRITTEN if "record" in each}
TESTED = {
    test["alertname"]
    for name in TESTS
    for group in yaml.safe_load((RULES / name).read_text())["tests"]
    for test in group["alert_rule_test"]
}
UNITS = {"s": "_seconds", "By": "_bytes", "": ""}


def names() -> set[str]:
    """What Prometheus calls our instruments."""
    found = set()
    for each in Instruments(MeterProvider([InMemoryMetricReader()]).get_meter("m")):
        name = each.name.replace(".", "_")
        name += "" if name.endswith(UNITS[each.unit]) else UNITS[each.unit]
        kind = type(each).__name__
        more = ("_bucket", "_sum", "_count") if "Histogram" in kind else ("_total",) if "Counter" in kind else ("",)
        found.update(name + end for end in more)
    return found


@pytest.mark.parametrize("query", [each["expr"] for each in WRITTEN] + [each.query for each in panels()])
def test_a_query_asks_for_metrics_that_there_are(query: str) -> None:
    asked = set(re.findall(r"samza_azure[_:]\w+", query))
    assert asked <= names() | RECORDED
    assert asked or re.fullmatch(r"vector\(\d+\)", query)  # a number for the operator to set


@pytest.mark.parametrize("query", [each["expr"] for each in WRITTEN] + [each.query for each in panels()])
def test_a_fleet_does_not_hide_the_state_of_another(query: str) -> None:
    """A fleet is a scrape job: whatever puts series together keeps those of one job apart from the others'."""
    together = re.findall(r"\b(?:max|min|sum|avg|count|group)\b *(by \(job\b)?", query)
    assert all(together), query


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_links_its_section(alert: dict[str, dict[str, str]]) -> None:
    path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert f"### {anchor}\n" in (ROOT / path).read_text()


def test_each_alert_is_tried_by_promtool() -> None:
    assert {alert["alert"] for alert in ALERTS} == TESTED


def test_a_panel_asks_for_what_its_title_says() -> None:
    (panel,) = [each for each in panels() if each.title == "Moves and take-overs"]
    assert "samza_azure_moves_total" in panel.query and "samza_azure_failovers_total" in panel.query


def test_azures_alert_on_tasks_asks_the_leader() -> None:
    """A dead owner reports nothing about its tasks, so no processor counted them as missing."""
    text = (ROOT / "infra" / "azure" / "observe.bicep").read_text()
    found = re.search(r"name: 'tasks-not-running'.*?query: '([^']*)'", text, re.DOTALL)
    assert found is not None
    assert set(re.findall(r"samza_azure\.[\w.]+", found[1])) == {
        "samza_azure.group.tasks",
        "samza_azure.group.tasks.running",
    }


def test_the_dashboard_is_what_grafana_imports() -> None:
    made = json.loads(json.dumps(dashboard()))
    shown = [each for each in made["panels"] if each["type"] != "row"]
    assert [each["targets"][0]["expr"] for each in shown] == [each.query for each in panels()]
    assert len({each["id"] for each in made["panels"] if "id" in each}) == len(shown)
