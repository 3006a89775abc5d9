"""The declared metrics, and what is written about them: the page, the alert rules and the dashboard."""

import json
import re
from pathlib import Path

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


def dashboard_expressions() -> list[str]:
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def alert_expressions() -> list[str]:
    return re.findall(r"expr: '(.*)'", (DEPLOY / "alerts.yml").read_text())


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
    rules = (DEPLOY / "alerts.yml").read_text()
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
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
