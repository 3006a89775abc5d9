"""ADR-007: the rules for paths of artifacts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.formats.humaninloop.files import FilePlan, is_git_repository, plan_files
from tests.support.humaninloop_peers import SEED_INPUT, SEED_OUTPUT, opened, output, rules


def files(*paths: str) -> dict[str, Any]:
    return output(artifacts=[{"path": path, "operation": "create", "content": "x"} for path in paths])


def found(plan: FilePlan) -> list[tuple[str, str]]:
    return [(finding.rule, finding.path) for finding in plan.findings]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "path_empty_segment"),
        ("/etc/passwd", "path_absolute"),
        ("//server/share", "path_absolute"),
        ("C:/windows", "path_absolute"),
        ("c:x", "path_absolute"),
        ("..", "path_dots"),
        ("../x", "path_dots"),
        ("a/../../x", "path_dots"),
        ("a/..", "path_dots"),
        ("./a", "path_dots"),
        ("a/./b", "path_dots"),
        ("a//b", "path_empty_segment"),
        ("a/", "path_empty_segment"),
        ("a\\b", "path_backslash"),
        ("..\\..\\x", "path_backslash"),
        ("a\x00b", "path_characters"),
        ("a\nb", "path_characters"),
        ("a\x7fb", "path_characters"),
        ("a\x9bb", "path_characters"),
        ("txt\u202egpj.md", "path_characters"),
        ("a\u2066b", "path_characters"),
        (".git/config", "path_git"),
        ("a/.GIT/hooks/pre-commit", "path_git"),
        ("a/.git", "path_git"),
        (".git./config", "path_git"),
        (".git ./config", "path_git"),
        ("GIT~1/config", "path_git"),
        (".git::$INDEX_ALLOCATION/config", "path_git"),
        (".g\u200cit/config", "path_git"),
        ("\ufeff.git/config", "path_git"),
        ("\uff0egit/config", "path_git"),
    ],
)
def test_paths_that_are_refused(path: str, rule: str) -> None:
    assert found(plan_files(files(path))) == [(rule, "/artifacts/0/path")]
    flow, checker, _ = opened()
    plan, _ = checker.submit(files(path), flow)
    assert rules(plan) == [("error", rule, "/artifacts/0/path")]


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b.md",
        "...",
        "..a",
        "a..",
        ".hidden/x",
        ".gitignore",
        "git/x",
        "a.git",
        "a b",
        "ä/日本.md",
        "~/x",
        "$HOME/x",
        "-rf",
    ],
)
def test_unusual_but_valid_paths_are_accepted(path: str) -> None:
    plan = plan_files(files(path))
    assert plan.findings == ()
    assert plan.files[0].segments == tuple(path.split("/"))


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ("a.md", "a.md", "path_twice"),
        ("Spec.md", "spec.MD", "path_twice"),
        ("caf\u00e9.md", "cafe\u0301.md", "path_twice"),
        ("STRASSE", "stra\u00dfe", "path_twice"),
        ("\u00c9", "e\u0301", "path_twice"),
        ("\u01f0", "J\u030c", "path_twice"),
        ("docs/x", "DOCS/X", "path_twice"),
        ("docs", "docs/x", "file_as_folder"),
        ("docs/x", "docs", "file_as_folder"),
        ("Docs", "docs/x/y", "file_as_folder"),
        ("a/b/c", "A/b", "file_as_folder"),
    ],
)
def test_two_files_that_cannot_stand_side_by_side(first: str, second: str, rule: str) -> None:
    assert found(plan_files(files("other", first, second))) == [(rule, "/artifacts/2/path")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["HEAD", "objects/"], True),
        (["head", "Refs"], True),
        (["HEAD", "CommonDir"], True),
        (["HEAD. ", "COMMON~1"], True),
        (["HEAD::$DATA", "objects./"], True),
        (["h\u200cead", "\uff52efs/"], True),
        (["HEAD", "config"], False),
        (["objects/", "refs/", "config"], False),
        (["head/", "objects/", "refs/"], False),
        (["HEAD.md", "objects/"], False),
        (["HEAD", "objects.md", "prefs/"], False),
    ],
)
def test_entries_that_make_a_folder_a_git_repository(names: list[str], expected: bool) -> None:
    assert is_git_repository(names) is expected
    assert is_git_repository(reversed(names)) is expected


def test_similar_names_do_not_conflict() -> None:
    assert plan_files(files("docs/x", "docs/y", "docs.md", "doc", "docs2/x")).findings == ()


@pytest.mark.parametrize(
    ("root", "path", "segments", "warned"),
    [
        ("specs/005/", "specs/005/a.md", ("a.md",), True),
        ("specs/005", "specs/005/b/a.md", ("b", "a.md"), True),
        ("./specs/005/", "specs/005/a.md", ("a.md",), True),
        ("specs/005/", "specs/0055/a.md", ("specs", "0055", "a.md"), False),
        ("specs/005/", "a.md", ("a.md",), False),
        ("specs/005/", "Specs/005/a.md", ("Specs", "005", "a.md"), False),
        ("", "a.md", ("a.md",), False),
        (".", "a.md", ("a.md",), False),
        ("../specs", "specs/a.md", ("specs", "a.md"), False),
    ],
)
def test_a_leading_feature_root_is_stripped(root: str, path: str, segments: tuple[str, ...], warned: bool) -> None:
    for plan in (plan_files(files(path), root), plan_files(files(path), None, {"paths": {"feature_root": root}})):
        assert plan.files[0].segments == segments
        assert found(plan) == ([("feature_root_stripped", "/artifacts/0/path")] if warned else [])


def test_the_opening_input_knows_its_root_better_than_the_options() -> None:
    plan = plan_files(SEED_OUTPUT, "specs", SEED_INPUT)
    assert plan.files[0].path == "spec.md"


def test_the_feature_root_itself_is_not_a_file() -> None:
    assert found(plan_files(files("specs/005"), "specs/005/")) == [("path_is_root", "/artifacts/0/path")]


def test_stripping_uncovers_clashes_but_no_way_out() -> None:
    assert found(plan_files(files("a.md", "specs/A.md"), "specs/"))[-1] == ("path_twice", "/artifacts/1/path")
    assert found(plan_files(files("specs/../../x"), "specs/")) == [("path_dots", "/artifacts/0/path")]
    assert found(plan_files(files("specs//etc/passwd"), "specs/")) == [("path_empty_segment", "/artifacts/0/path")]


@given(
    st.lists(st.text(st.sampled_from("ab.\\/:\0\n\u202eA\u0301é ~"), max_size=6), max_size=4),
    st.text("ab./", max_size=4),
)
def test_a_plan_without_errors_stays_below_its_root(paths: list[str], root: str) -> None:
    plan = plan_files(files(*paths), root)
    if any(finding.severity == "error" for finding in plan.findings):
        return
    assert len(plan.files) == len(paths)
    for file in plan.files:
        assert file.segments
        assert not {"", ".", ".."} & set(file.segments)
        assert not any(char in segment for segment in file.segments for char in "/\\\0\n")
    assert len({file.path.casefold() for file in plan.files}) == len(plan.files)
