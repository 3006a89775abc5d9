"""The daily audit log as a file: entries are appended once, despite interruptions and several daemons."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from aghbus.daemon.bridge.log_files import append, overwrite

DAY = "20260127"
FIRST, SECOND, THIRD = (f"[TIMESTAMP: 14:30:5{n}]\n[MESSAGE_ID: m{n}]\n---\n".encode() for n in range(3))


def log(root: Path) -> Path:
    return root / "system" / "logs" / f"{DAY}.log"


def test_entries_are_appended_in_order_to_a_private_file(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    append(root, DAY, [FIRST, SECOND], skip_existing=False)
    append(root, DAY, [THIRD], skip_existing=False)
    assert log(root).read_bytes() == FIRST + SECOND + THIRD
    assert stat.S_IMODE(log(root).stat().st_mode) == 0o600
    assert stat.S_IMODE(log(root).parent.stat().st_mode) == 0o700


def test_after_a_crash_only_missing_entries_are_appended(tmp_path: Path) -> None:
    append(tmp_path, DAY, [FIRST], skip_existing=False)
    append(tmp_path, DAY, [FIRST, SECOND], skip_existing=True)
    append(tmp_path, DAY, [FIRST, SECOND], skip_existing=True)
    assert log(tmp_path).read_bytes() == FIRST + SECOND


@pytest.mark.parametrize("cut", range(1, len(SECOND)))
def test_a_partial_entry_is_completed(tmp_path: Path, cut: int) -> None:
    append(tmp_path, DAY, [FIRST], skip_existing=False)
    with log(tmp_path).open("ab") as file:
        file.write(SECOND[:cut])
    append(tmp_path, DAY, [FIRST, SECOND, THIRD], skip_existing=True)
    assert log(tmp_path).read_bytes() == FIRST + SECOND + THIRD


def test_an_incomplete_entry_of_another_writer_is_terminated_first(tmp_path: Path) -> None:
    log(tmp_path).parent.mkdir(parents=True)
    log(tmp_path).write_bytes(FIRST + b"[TIMESTAMP: 14:")
    append(tmp_path, DAY, [SECOND], skip_existing=False)
    assert log(tmp_path).read_bytes() == FIRST + b"[TIMESTAMP: 14:\n---\n" + SECOND


@pytest.mark.parametrize("day", ["../../x", "2026012", "20260127/..", "", "２０２６０１２７"])
def test_an_invalid_day_names_no_file(tmp_path: Path, day: str) -> None:
    with pytest.raises(ValueError, match="digits"):
        append(tmp_path, day, [FIRST], skip_existing=False)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    log(tmp_path).parent.mkdir(parents=True)
    log(tmp_path).symlink_to(victim)
    with pytest.raises(OSError, match=r"symbolic|level"):
        append(tmp_path, DAY, [FIRST], skip_existing=False)
    assert victim.read_bytes() == b"mine"


def test_a_pipe_in_place_of_the_file_does_not_hold_us(tmp_path: Path) -> None:
    log(tmp_path).parent.mkdir(parents=True)
    os.mkfifo(log(tmp_path))
    with pytest.raises(OSError, match="not a regular file"):
        append(tmp_path, DAY, [FIRST], skip_existing=False)


def test_a_writer_that_keeps_the_lock_delays_for_a_limited_time(tmp_path: Path) -> None:
    append(tmp_path, DAY, [FIRST], skip_existing=False)
    with log(tmp_path).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused: list[OSError] = []

        def attempt() -> None:
            try:
                append(tmp_path, DAY, [SECOND], skip_existing=False)
            except OSError as error:
                refused.append(error)

        attempting = threading.Thread(target=attempt)
        attempting.start()
        attempting.join(15)
        waited = not attempting.is_alive()
    attempting.join()
    assert waited and "locked by another process" in str(refused[0])
    append(tmp_path, DAY, [SECOND], skip_existing=True)
    assert log(tmp_path).read_bytes() == FIRST + SECOND


def test_two_writers_never_mix_their_entries(tmp_path: Path) -> None:
    entries = {
        name: [f"[AGENT: {name}]\n[MESSAGE_ID: {name}{n}]\n".encode() + b"x" * 9_000 + b"\n---\n" for n in range(40)]
        for name in ("a", "b")
    }

    def write(name: str) -> None:
        for entry in entries[name]:
            append(tmp_path, DAY, [entry], skip_existing=False)

    threads = [threading.Thread(target=write, args=(name,)) for name in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [part + b"---\n" for part in log(tmp_path).read_bytes().split(b"---\n")[:-1]]
    for name, wanted in entries.items():
        assert [entry for entry in found if entry.startswith(f"[AGENT: {name}]".encode())] == wanted
    assert len(found) == 80


def test_an_overwritten_entry_leaves_all_others_where_they_are(tmp_path: Path) -> None:
    append(tmp_path, DAY, [FIRST, SECOND, FIRST, THIRD], skip_existing=False)
    overwrite(tmp_path, DAY, [FIRST, b"[TIMESTAMP: of another day]\n---\n"])
    left = log(tmp_path).read_bytes()
    erased = b"[PURGED]".ljust(len(FIRST) - 5) + b"\n---\n"
    assert left == erased + SECOND + erased + THIRD
    overwrite(tmp_path, DAY, [FIRST])
    assert log(tmp_path).read_bytes() == left
    overwrite(tmp_path / "elsewhere", DAY, [FIRST])
    assert not (tmp_path / "elsewhere").exists()
