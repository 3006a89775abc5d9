"""Links lead to pages and headings that exist; pages that code and deployed files name exist, too."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
TOPS: Final = (
    "bench",
    "cli",
    "client",
    "daemon",
    "deploy",
    "docs",
    "examples",
    "gateways",
    "host",
    "protocol",
    "store",
    "testing",
    "tests",
)
SUFFIXES: Final = {".conf", ".md", ".py", ".service", ".toml", ".yaml", ".yml"}
FILES: Final = sorted(path for name in TOPS for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES)
PAGES: Final = [*sorted(ROOT.glob("*.md")), *(path for path in FILES if path.suffix == ".md")]


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of `page`."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(page: Path) -> Iterator[str]:
    """The links of `page` into this repository that lead nowhere."""
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    assert list(broken(page)) == []


def test_the_way_through_the_pages_has_every_page() -> None:
    way = ROOT / "docs" / "README.md"
    led = {(way.parent / name).resolve() for name in re.findall(r"\]\(([\w./-]+)", way.read_text("utf-8"))}
    pages = {path for path in PAGES if path.is_relative_to(ROOT / "docs")} - {way}
    assert sorted(path.name for path in pages if not {path, path.parent} & (led - {way.parent})) == []


def test_every_page_that_a_file_names_exists() -> None:
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] != "tests"]  # tests have invented names, too
    named = {name for path in files for name in re.findall(r"\bdocs/[\w/.-]+\.(?:md|json)\b", path.read_text("utf-8"))}
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_no_page_installs_aghbus_from_a_registry_that_does_not_have_it() -> None:
    named = re.compile(r"\b(?:pip|pipx|uv tool) install [^\n#]*(?<![\w/.-])aghbus(?![\w.-]*\.whl)")
    assert {page.name: found for page in PAGES if (found := named.findall(page.read_text("utf-8")))} == {}
    assert named.search("# x/bin/pip install aghbus") and named.search("pip install 'aghbus[otel]'")
