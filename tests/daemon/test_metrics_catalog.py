"""The declared metrics, and what is written about them: the page, the alert rules and the dashboard."""

import json
import re
from pathlib import Path
from typing import Any

from aghbus.daemon.health.catalog import METRICS, metrics_table

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
SUFFIXES = ("_bucket", "_count", "_sum")
EXPORTED = {
    f"{metric.name}{suffix}" for metric in METRICS for suffix in (SUFFIXES if metric.type == "histogram" else ("",))
}


def named(text: str) -> set[str]:
    return set(re.findall(r"\baghbus_\w+", text))


def matched(text: str) -> set[tuple[str, str]]:
    """Label and value of each matcher with `=` in an expression, without Grafana's variables."""
    found = re.findall(r'(\w+)=~?"([^"$]+)"', text)
    return {(label, value) for label, values in found if label != "job" for value in values.split("|")}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "dashboard.json").read_text())
    return found


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def alert_expressions() -> list[str]:
    return re.findall(r"expr: '(.*)'", (DEPLOY / "alerts.yml").read_text())


def all_rules() -> str:
    return "".join((DEPLOY / name).read_text() for name in ("alerts.yml", "nats.yml"))


def test_the_page_has_the_table_of_all_metrics() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert metrics_table() in page, "put what aghbus.daemon.health.catalog.metrics_table() returns into it"


def test_alerts_and_dashboard_use_only_metrics_and_labels_that_exist() -> None:
    expressions = alert_expressions() + dashboard_expressions()
    assert len(alert_expressions()) > 10
    values = {(label, value) for metric in METRICS for label, some in metric.labels.items() for value in some}
    for expression in expressions:
        assert named(expression) <= EXPORTED, expression
        assert matched(expression) <= values, expression


def test_every_alert_links_its_section_of_the_runbook() -> None:
    rules = all_rules()
    names = re.findall(r"- alert: (\w+)", rules)
    assert re.findall(r"runbook_url: '.*/docs/runbook.md#(\w+)'", rules) == [name.lower() for name in names]
    page = (ROOT / "docs" / "runbook.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert list(sections) == names
    for name, text in sections.items():
        assert re.findall(r"^- \*\*(.*?)\*\*", text, re.M) == ["Means", "Hurts", "Look at", "Do"], name


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name.removesuffix("_bucket") for text in dashboard_expressions() for name in named(text)}
    assert shown == {metric.name for metric in METRICS}


def test_a_dashboard_has_one_id_and_place_for_each_panel() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_the_dashboard_is_in_rows_of_one_question_each_and_every_panel_says_what_it_answers() -> None:
    first, *others = dashboard()["panels"]
    assert first["type"] == "row"
    for panel in (first, *others):
        assert panel["title"].endswith("?") if panel["type"] == "row" else "?" in panel["description"], panel["title"]


def test_every_expression_of_the_dashboard_is_of_the_chosen_daemons() -> None:
    chosen = 'job=~"$job", namespace=~"$namespace", instance=~"$instance"'
    assert all(chosen in expression for expression in dashboard_expressions())
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "job", "namespace", "instance"]


def test_the_dashboard_draws_the_thresholds_of_the_alerts() -> None:
    """A rule is named by one panel, which has its number as a line, or its bound as a series."""
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    rules = re.findall(r"- alert: (\w+)\n +expr: '(.*)'", (DEPLOY / "alerts.yml").read_text())
    for name, expression in rules:
        (panel,) = (one for one in panels if re.search(rf"\b{name}\b", one["description"]))
        lines = [step["value"] for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])]
        queries = " ".join(target["expr"] for target in panel["targets"])
        assert named(queries) & named(expression) or name == "AghbusDown"
        for number in map(float, re.findall(r"> ([0-9.]+)(?= |$)(?! \*)", expression)):
            assert number == 0 or number in lines, name
        for factor in re.findall(r"([0-9.]+ \*)", expression):
            assert factor in queries, name
