"""Files of a peer are written: untrusted paths never leave the folder, and all files are written or none."""

import os
import resource
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aghbus.host.file_writer import ApplyRefused, AtomicFileWriter
from aghbus.protocol.formats.humaninloop.files import PlannedFile
from tests.support.trees import tree

NOBODY = 65534


def planned(path: str, operation: str = "create", content: str = "new\n") -> PlannedFile:
    return PlannedFile(tuple(path.split("/")), operation, content)


def apply(root: Path, *files: PlannedFile) -> None:
    with AtomicFileWriter(str(root), files) as application:
        application.check()
        application.stage()
        application.commit()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "spec.md").write_text("old\n")
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("untouched\n")
    return folder


def refused(root: Path, outside: Path | None, *files: PlannedFile) -> str:
    """The message of a refusal that left everything as it was."""
    before = tree(root), tree(outside) if outside else None
    with pytest.raises(ApplyRefused) as caught:
        apply(root, *files)
    assert (tree(root), tree(outside) if outside else None) == before
    return caught.value.message


# what is written


def test_files_are_created_and_updated_in_folders_that_are_made(root: Path) -> None:
    apply(
        root, planned("a/b/c.md"), planned("a/b/d.md", content="d"), planned("docs/spec.md", "update"), planned("ä.md")
    )
    assert tree(root) == {
        "a": ("folder", ""),
        "a/b": ("folder", ""),
        "a/b/c.md": ("file", "new\n"),
        "a/b/d.md": ("file", "d"),
        "docs": ("folder", ""),
        "docs/spec.md": ("file", "new\n"),
        "ä.md": ("file", "new\n"),
    }


def test_updated_file_keeps_its_mode_and_new_file_obeys_umask(root: Path) -> None:
    (root / "docs" / "spec.md").chmod(0o640)
    before = os.umask(0o027)
    try:
        apply(root, planned("docs/spec.md", "update"), planned("new.md"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "docs" / "spec.md").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "new.md").stat().st_mode) == 0o640


def test_no_written_file_is_executable(root: Path) -> None:
    (root / "docs" / "spec.md").chmod(0o755)
    apply(root, planned("docs/spec.md", "update"), planned("new.sh"))
    assert stat.S_IMODE((root / "docs" / "spec.md").stat().st_mode) == 0o644
    assert not (root / "new.sh").stat().st_mode & 0o111


def test_the_root_itself_may_be_a_link_of_the_operator(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    apply(tmp_path / "link", planned("x.md"))
    assert (root / "x.md").read_text() == "new\n"


# create and update


def test_create_never_overwrites(root: Path) -> None:
    assert "docs/spec.md: exists" in refused(root, None, planned("first.md"), planned("docs/spec.md"))
    (root / "dangling").symlink_to("nowhere")
    assert "dangling: exists" in refused(root, None, planned("dangling"))
    assert "docs: exists" in refused(root, None, planned("docs"))


def test_update_needs_a_regular_file(root: Path) -> None:
    assert "does not exist" in refused(root, None, planned("first.md"), planned("docs/none.md", "update"))
    assert "does not exist" in refused(root, None, planned("none/none.md", "update"))
    assert "not a regular file" in refused(root, None, planned("docs", "update"))
    os.mkfifo(root / "pipe")
    with pytest.raises(ApplyRefused, match="not a regular file"):
        apply(root, planned("pipe", "update"))


def test_a_file_as_a_parent_folder_is_refused(root: Path) -> None:
    assert "docs/spec.md is not a folder" in refused(root, None, planned("docs/spec.md/x"))


@pytest.mark.parametrize(
    ("there", "wanted"),
    [("Spec.md", "spec.md"), ("caf\u00e9.md", "cafe\u0301.md"), ("Folder", "folder/x.md"), ("STRASSE", "straße")],
)
def test_a_second_spelling_of_a_name_is_refused(root: Path, there: str, wanted: str) -> None:
    (root / there).mkdir()
    assert "same name" in refused(root, None, planned(wanted))


# symbolic links


def test_no_link_is_followed(root: Path, outside: Path) -> None:
    (root / "out").symlink_to(outside)
    (root / "docs" / "out").symlink_to(outside, target_is_directory=True)
    (root / "secret").symlink_to(outside / "secret")
    for file in (
        planned("out/x"),
        planned("docs/out/x"),
        planned("out/secret", "update"),
        planned("secret", "update"),
        planned("secret"),
        planned("out/deeper/x"),
    ):
        refused(root, outside, planned("innocent.md"), file)


def test_a_link_to_the_inside_is_not_followed_either(root: Path) -> None:
    (root / "alias").symlink_to("docs")
    assert "symbolic links" in refused(root, None, planned("alias/x.md"))


def test_an_updated_file_that_becomes_a_link_between_check_and_commit(root: Path, outside: Path) -> None:
    with (
        pytest.raises(ApplyRefused, match="changed by another process"),
        AtomicFileWriter(str(root), [planned("first.md"), planned("docs/spec.md", "update", "evil\n")]) as application,
    ):
        application.check()
        application.stage()
        (root / "docs" / "spec.md").unlink()
        (root / "docs" / "spec.md").symlink_to(outside / "secret")
        application.commit()
    assert (outside / "secret").read_text() == "untouched\n"
    assert tree(root) == {
        "docs": ("folder", ""),
        "docs/spec.md": ("link", str(outside / "secret")),
    }


def test_an_updated_file_that_changed_meanwhile_is_not_overwritten(root: Path) -> None:
    with (
        pytest.raises(ApplyRefused, match="changed by another process"),
        AtomicFileWriter(str(root), [planned("first.md"), planned("docs/spec.md", "update")]) as application,
    ):
        application.check()
        application.stage()
        (root / "docs" / "spec.md").write_text("edited by a person\n")
        application.commit()
    assert tree(root) == {"docs": ("folder", ""), "docs/spec.md": ("file", "edited by a person\n")}


def test_a_folder_repeatedly_swapped_for_a_link_is_never_followed(root: Path, outside: Path) -> None:
    """Each round either writes below the root or is refused; the outside never changes."""
    done = threading.Event()
    link = root / "link"
    link.symlink_to(outside)

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                os.rename(root / "docs", root / "aside")  # noqa: PTH104
                os.rename(link, root / "docs")  # noqa: PTH104
            with suppress(OSError):
                os.rename(root / "docs", link)  # noqa: PTH104
                os.rename(root / "aside", root / "docs")  # noqa: PTH104

    before = tree(outside)
    swapper = threading.Thread(target=swap)
    swapper.start()
    written = turned_away = 0
    try:
        for number in range(400):
            try:
                apply(root, planned(f"docs/sub{number}/x.md"), planned("docs/secret", "update", "evil\n"))
                pytest.fail("there is no docs/secret below the root")
            except ApplyRefused:
                turned_away += 1
            try:
                apply(root, planned(f"docs/new{number}/x.md", content="evil\n"))
                written += 1
            except ApplyRefused:
                turned_away += 1
    finally:
        done.set()
        swapper.join()
    assert tree(outside) == before
    assert written + turned_away == 800
    assert turned_away >= 400


# all or nothing


def test_a_name_created_between_stage_and_commit_reverts_the_first_file(root: Path) -> None:
    files = [planned("docs/spec.md", "update"), planned("made/one.md"), planned("made/two.md")]
    with pytest.raises(ApplyRefused, match=r"made/two.md: exists"), AtomicFileWriter(str(root), files) as application:
        application.check()
        application.stage()
        (root / "made" / "two.md").write_text("somebody else's")
        application.commit()
    assert tree(root) == {
        "docs": ("folder", ""),
        "docs/spec.md": ("file", "old\n"),
        "made": ("folder", ""),
        "made/two.md": ("file", "somebody else's"),
    }


def test_a_file_replaced_by_another_process_is_not_reverted(root: Path) -> None:
    files = [planned("one.md"), planned("two.md")]
    with pytest.raises(ApplyRefused), AtomicFileWriter(str(root), files) as application:
        application.check()
        application.stage()
        (root / "two.md").write_text("theirs")
        with pytest.raises(ApplyRefused):
            application.commit()
        (root / "one.md").unlink()
        (root / "one.md").write_text("theirs too")
        raise ApplyRefused("as before")
    assert tree(root)["one.md"] == ("file", "theirs too")
    assert tree(root)["two.md"] == ("file", "theirs")
    assert not [name for name in tree(root) if name.startswith(".")]


def test_two_calls_at_once_make_no_git_repository(root: Path) -> None:
    before = tree(root)
    with (
        pytest.raises(ApplyRefused, match="docs/HEAD: with objects"),
        AtomicFileWriter(str(root), [planned("docs/objects/a"), planned("docs/spec.md", "update")]) as second,
    ):
        second.check()
        apply(root, planned("docs/HEAD"))
        second.stage()
        second.commit()
    assert tree(root) == {**before, "docs/HEAD": ("file", "new\n")}


def test_leaving_without_commit_leaves_nothing(root: Path) -> None:
    before = tree(root)
    with AtomicFileWriter(str(root), [planned("a/b.md"), planned("docs/spec.md", "update")]) as application:
        application.check()
        application.stage()
        assert tree(root) != before
    assert tree(root) == before


def test_two_writers_of_one_process_do_not_meet(root: Path) -> None:
    """As two runs of chains, or a daemon after a kill whose process id is that of the one before, as in a container."""
    with AtomicFileWriter(str(root), [planned("docs/a.md")]) as first:
        first.stage()
        apply(root, planned("docs/b.md"))
        first.commit()
    assert sorted(path.name for path in (root / "docs").iterdir()) == ["a.md", "b.md", "spec.md"]


def test_an_interrupt_in_the_middle_undoes_all(root: Path) -> None:
    before = tree(root)
    with pytest.raises(KeyboardInterrupt), AtomicFileWriter(str(root), [planned("a/b.md")]) as application:
        application.stage()
        raise KeyboardInterrupt
    assert tree(root) == before


def test_a_content_that_cannot_be_written_leaves_nothing(root: Path) -> None:
    """The limit on file sizes stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        said = refused(
            root, None, planned("a/small.md"), planned("docs/spec.md", "update"), planned("big", content="x" * 200_000)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.startswith("big: ")


def test_a_name_that_is_too_long_leaves_nothing(root: Path) -> None:
    refused(root, None, planned("a/fine.md"), planned("x" * 300))
    refused(root, None, planned("a/fine.md"), planned("a/" + "x" * 300))


def test_a_folder_that_is_read_only_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory() as name, _as_nobody(Path(name)) as root:
        (root / "locked").mkdir()
        (root / "locked").chmod(0o555)
        (root / "open.md").write_text("old\n")
        said = refused(root, None, planned("a/b.md"), planned("open.md", "update"), planned("locked/x.md"))
        assert said == "locked/x.md: Permission denied"
        (root / "locked").chmod(0o755)


@contextmanager
def _as_nobody(folder: Path) -> Iterator[Path]:
    """A root of its own; permissions mean nothing to the superuser, so that one steps down for the while."""
    root = folder / "root"
    root.mkdir()
    if os.geteuid() != 0:
        yield root
        return
    folder.chmod(0o755)
    os.chown(root, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield root
    finally:
        os.seteuid(0)


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    apply(root, planned("a/b/c/d.md"))
    refused(root, None, planned("a/b/c/d.md"))
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
