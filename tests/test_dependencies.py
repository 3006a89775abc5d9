"""The lock in requirements/ fits pyproject.toml, and docs/dependencies.md fits the lock and the installed packages."""

import hashlib
import json
import os
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
LOCKS: Final = ("build", "run", "dev", "release", "fuzz")
PIN: Final = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; ([^\\]+))? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
ROW: Final = re.compile(r"^\| ([a-z0-9-]+) \| (.+?) \| (\S+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def locked(name: str) -> dict[str, str]:
    """The version of each package that a lock installs on this machine."""
    found = PIN.findall((ROOT / "requirements" / f"{name}.txt").read_text("utf-8"))
    return {package: version for package, version, marker, _ in found if not marker or Marker(marker).evaluate()}


def first(package: metadata.PackageMetadata, key: str) -> str:
    return str((package.get_all(key) or [""])[0])


def declared_licence(package: metadata.PackageMetadata) -> str:
    """The licence expression, else the classifiers, else the first line of the free text."""
    classifiers = [line for line in package.get_all("Classifier") or [] if line.startswith("License")]
    named = ", ".join(line.rsplit(" :: ", 1)[-1] for line in classifiers)
    return (
        first(package, "License-Expression") or named or (first(package, "License") or "not declared").splitlines()[0]
    )


def declared_urls(package: metadata.PackageMetadata) -> set[str]:
    urls = [line.split(", ", 1)[1] for line in package.get_all("Project-URL") or []]
    return {*urls, first(package, "Home-page")}


def vendored() -> dict[str, str]:
    """The SHA-256 of each file of another project in the console's page, as docs/dependencies.md has it."""
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    return dict(re.findall(r"^\| `([a-z.-]+)` \|.* `([0-9a-f]{64})` \|$", page, re.MULTILINE))


def page_rows() -> dict[str, tuple[str, ...]]:
    rows = ROW.findall((ROOT / "docs" / "dependencies.md").read_text("utf-8"))
    names = [row[0] for row in rows if row[0] != "package"]
    assert len(names) == len(set(names)), "a package has two rows"
    return {name: tuple(rest) for name, *rest in rows if name != "package"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_a_pin_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    rest = re.sub(r"(?m)^ *#.*\n", "", PIN.sub("", text))
    assert rest == ""
    assert "://" not in text


def test_every_npm_package_is_pinned_with_a_hash_and_names_no_index() -> None:
    wanted, locked = (json.loads((ROOT / "requirements" / f"package{end}.json").read_text()) for end in ("", "-lock"))
    packages = locked["packages"]
    project = packages.pop("")
    for group in ("dependencies", "devDependencies"):
        assert project[group] == wanted[group]
        assert all(packages[f"node_modules/{name}"]["version"] == version for name, version in wanted[group].items())
    assert all(
        package["integrity"].startswith("sha512-") and "resolved" not in package for package in packages.values()
    )


def test_the_lock_satisfies_every_requirement_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = {
        name: [line for line in lines if isinstance(line, str)] for name, lines in project["dependency-groups"].items()
    }
    libraries = project["project"]["dependencies"]
    wanted = groups | {"run": libraries, "dev": libraries + groups["dev"] + groups["plots"]}
    wanted["build"] += project["build-system"]["requires"]
    del wanted["bench"], wanted["plots"], wanted["tools"]
    for name, lines in wanted.items():
        versions = locked(name)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate():
                version = versions.get(canonicalize_name(requirement.name))
                assert version is not None, f"requirements/{name}.txt lacks {requirement}: run make lock"
                assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: run make lock"


def test_the_locks_agree_on_versions() -> None:
    development = locked("dev")
    for name in LOCKS:
        differing = {
            package for package, version in locked(name).items() if development.get(package, version) != version
        }
        assert differing == set(), name
    assert locked("run").items() | locked("build").items() <= development.items()


def test_the_page_has_a_row_for_every_locked_package_and_no_other() -> None:
    pinned = {package for name in LOCKS for package, *_ in PIN.findall((ROOT / f"requirements/{name}.txt").read_text())}
    assert page_rows().keys() == pinned


def test_the_files_of_other_projects_are_unchanged() -> None:
    folder = ROOT / "daemon" / "console" / "page" / "vendor"
    files = [path for path in folder.iterdir() if path.suffix in (".js", ".css")]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == vendored()


def test_the_page_shows_the_declared_licences_and_sources() -> None:
    """Compared for packages that are installed in the locked version; in CI that must be all of run.txt and dev.txt."""
    rows = page_rows()
    versions = {package: version for name in LOCKS for package, version in locked(name).items()}
    installed = {str(canonicalize_name(found.name)): found for found in metadata.distributions()}
    compared = [name for name, version in versions.items() if name in installed and installed[name].version == version]
    for name in compared:
        licence, source, _, _ = rows[name]
        assert declared_licence(installed[name].metadata) in licence.split("; "), name
        assert source in declared_urls(installed[name].metadata), name
    if os.environ.get("CI"):
        assert locked("dev").keys() - set(compared) == set()
