"""`aghctl artifact get` against a scripted server: targets of the content, and errors of the connection."""

import contextlib
import hashlib
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTENT = b"all of the report\n"


def head(content: bytes) -> bytes:
    lines = [
        "HTTP/1.1 200 OK",
        f"Content-Length: {len(content)}",
        f"Artifact-Size: {len(content)}",
        f"Artifact-Digest: sha256:{hashlib.sha256(content).hexdigest()}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.contextmanager
def daemon(path: Path, answer: bytes) -> Iterator[None]:
    """A socket that sends `answer` to one connection and then nothing, until the client disconnects."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(answer)
            with contextlib.suppress(ConnectionError):
                connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def get(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "aghbus.cli", "--socket", "s", "artifact", "get", "w", "report", *args]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with daemon(tmp_path / "s", head(CONTENT) + CONTENT), get(tmp_path, "-O", "pipe") as process:
        # Opened for reading and writing, so that opening does not block; the pipe buffers the content.
        reader = os.open(tmp_path / "pipe", os.O_RDWR)
        try:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
            assert os.read(reader, 1000) == CONTENT
        finally:
            os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "s"]


def test_the_target_of_a_link_is_written(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(bytes(1000))
    (tmp_path / "link").symlink_to("old")
    with daemon(tmp_path / "s", head(CONTENT) + CONTENT), get(tmp_path, "-O", "link") as process:
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "old").read_bytes() == CONTENT


@pytest.mark.parametrize("what", ["socket", "folder"])
def test_a_target_that_cannot_be_written_is_refused_and_unchanged(what: str, tmp_path: Path) -> None:
    target = tmp_path / what
    if what == "folder":
        target.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(target))
    before = target.lstat().st_mode
    with daemon(tmp_path / "s", head(CONTENT) + CONTENT), get(tmp_path, "-O", what) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and errors.startswith(f"aghctl: {what}: ".encode())
    assert target.lstat().st_mode == before


def test_a_dash_is_standard_output(tmp_path: Path) -> None:
    with daemon(tmp_path / "s", head(CONTENT) + CONTENT), get(tmp_path, "-O", "-") as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, CONTENT), errors
    assert b"sha256:" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("sent", [CONTENT[:3], b""])
def test_an_unresponsive_daemon_is_unreachable(sent: bytes, tmp_path: Path) -> None:
    with daemon(tmp_path / "s", head(CONTENT) + sent), get(tmp_path, "--timeout", "0.2s") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert b"did not respond in time" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_an_unfinished_error_response_is_unreachable(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n{"
    with daemon(tmp_path / "s", answer), get(tmp_path, "--timeout", "0.2s") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
