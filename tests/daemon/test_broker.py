"""The embedded broker: real nats-server processes, real member processes, and kill -9 for each of them."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.daemon.base.logs import TextFormatter
from aghbus.daemon.broker.binary import find_binary
from aghbus.daemon.broker.directory import BrokerFolder, BrokerRecord
from aghbus.daemon.broker.embedded import BrokerError, EmbeddedBroker
from aghbus.daemon.broker.probe import ProbeFailed, probe
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.host.file_lock import is_locked
from tests.support.natsutil import pause, wait_until

BACK_WITHIN = (
    15.0  # seconds: "nobody left disconnected for more than a few", on a machine that may stand still for some
)

MEMBER = """
import asyncio, sys
from pathlib import Path
from aghbus.daemon.broker.directory import BrokerFolder
from aghbus.daemon.broker.embedded import EmbeddedBroker

async def main():
    broker = EmbeddedBroker(Path(sys.argv[1]))
    options = await broker.join()
    print(options.servers[0], BrokerFolder(Path(sys.argv[1])).server_pid(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await broker.leave()

asyncio.run(main())
"""


class Member:
    """A process that joins the broker and stays until it is asked to leave, or killed."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, server_pid: int) -> None:
        self.process = process
        self.url = url
        self.server_pid = server_pid

    @classmethod
    async def start(cls, folder: Path) -> "Member":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEMBER, str(folder), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).split()
        assert len(line) == 2, "the member did not join"
        return cls(process, line[0].decode(), int(line[1]))

    async def leave(self) -> None:
        await self.process.communicate(b"")
        assert self.process.returncode == 0

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[BrokerFolder]:
    """A broker's folder; when the test ends without members left, neither guard nor server may be left."""
    made = BrokerFolder(tmp_path / "broker")
    yield made
    try:
        await wait_until(lambda: gone(made), 15, "guard and server to end")
    finally:
        if is_locked(made.server_lock):
            os.kill(made.server_pid(), signal.SIGKILL)


def gone(folder: BrokerFolder) -> bool:
    return not is_locked(folder.guard_lock) and not is_locked(folder.server_lock)


def of_process(pid: int | str, what: str) -> bytes:
    return Path(f"/proc/{pid}/{what}").read_bytes()


def record(folder: BrokerFolder) -> BrokerRecord:
    found = folder.record()
    assert found is not None
    return found


def guard_pid(folder: BrokerFolder) -> int:
    return record(folder).guard_pid


def starts(folder: BrokerFolder) -> int:
    return folder.log_file.read_text().count("Starting nats-server")


@contextlib.asynccontextmanager
async def joined(folder: BrokerFolder) -> AsyncIterator[tuple[EmbeddedBroker, Link, list[bytes]]]:
    """A member in this process with a link of its own that receives `t`; it leaves at the end."""
    broker = EmbeddedBroker(folder.path)
    link = Link(broker.join, name="test")
    received: list[bytes] = []

    def keep(message: InboundMessage) -> None:
        received.append(message.data)

    link.subscribe("t", keep)
    link.start()
    try:
        assert await link.wait_up(30), link.last_error
        yield broker, link, received
    finally:
        await link.close(2)
        await broker.leave()


async def exchange(sender: Link, receiver: list[bytes], text: bytes) -> None:
    await sender.publish("t", text)
    await sender.flush(20)
    await wait_until(lambda: text in receiver, 20, f"{text!r} to arrive")


async def test_two_processes_share_one_broker_that_ends_with_the_last(folder: BrokerFolder) -> None:
    first = await Member.start(folder.path)
    second = await Member.start(folder.path)
    assert (first.url, first.server_pid) == (second.url, second.server_pid)
    await first.leave()
    assert is_locked(folder.server_lock)
    await second.leave()
    await wait_until(lambda: gone(folder), 30, "the broker to stop")
    assert not folder.record_file.exists()


async def test_the_broker_survives_the_daemon_that_started_it(folder: BrokerFolder) -> None:
    starter = await Member.start(folder.path)
    async with joined(folder) as (_, link, _), joined(folder) as (_, _, received):
        guard = guard_pid(folder)
        await starter.kill()
        await exchange(link, received, b"still here")
        assert link.reconnects == 0
        assert folder.server_pid() == starter.server_pid
        assert guard_pid(folder) == guard


async def test_a_killed_server_comes_back_on_its_port_and_subscriptions_with_it(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, link, _), joined(folder) as (_, other, received):
        before = record(folder)
        os.kill(before.pid, signal.SIGKILL)
        await wait_until(lambda: link.reconnects == other.reconnects == 1, BACK_WITHIN, "the loss to be seen")
        assert await link.wait_up(BACK_WITHIN)
        assert await other.wait_up(BACK_WITHIN)
        await exchange(link, received, b"again")
        after = record(folder)
        assert after.pid != before.pid
        assert after.port == before.port
        assert starts(folder) == 2


async def test_a_killed_guard_is_replaced_without_a_lost_connection(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, link, received), joined(folder) as (_, other, _):
        before = record(folder)
        os.kill(before.guard_pid, signal.SIGKILL)
        await wait_until(lambda: not is_locked(folder.guard_lock), 20, "the guard to die")
        await wait_until(
            lambda: is_locked(folder.guard_lock) and guard_pid(folder) != before.guard_pid,
            BACK_WITHIN,
            "another guard",
        )
        await exchange(other, received, b"unbroken")
        assert link.reconnects == other.reconnects == 0
        assert folder.server_pid() == before.pid
    # and the new guard stops a server that it did not start: the fixture waits for that


async def test_a_killed_guard_does_not_leave_the_server_behind(folder: BrokerFolder) -> None:
    broker = EmbeddedBroker(folder.path)
    await broker.join()
    os.kill(guard_pid(folder), signal.SIGKILL)
    await wait_until(lambda: not is_locked(folder.guard_lock), 20, "the guard to die")
    await broker.leave()


async def test_an_orphaned_server_is_adopted_by_the_next_to_join(folder: BrokerFolder) -> None:
    member = await Member.start(folder.path)
    os.kill(guard_pid(folder), signal.SIGKILL)
    await member.kill()
    await wait_until(lambda: not is_locked(folder.guard_lock), 20, "the guard to die")
    assert is_locked(folder.server_lock)
    async with joined(folder) as (_, _, _):
        assert folder.server_pid() == member.server_pid
        assert is_locked(folder.guard_lock)


async def test_guard_and_server_killed_together(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, link, received), joined(folder) as (_, other, _):
        before = record(folder)
        os.kill(before.guard_pid, signal.SIGKILL)
        os.kill(before.pid, signal.SIGKILL)
        await wait_until(lambda: link.reconnects == other.reconnects == 1, BACK_WITHIN, "the loss to be seen")
        assert await link.wait_up(BACK_WITHIN)
        assert await other.wait_up(BACK_WITHIN)
        await exchange(other, received, b"back")
        assert record(folder).port == before.port


async def test_terminated_guard_stops_server_and_members_restart_it(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, link, _):
        before = record(folder)
        os.kill(before.guard_pid, signal.SIGTERM)
        await wait_until(lambda: link.reconnects == 1, 30, "the loss to be seen")
        assert await link.wait_up(BACK_WITHIN)
        assert folder.server_pid() != before.pid


async def test_the_last_member_killed_ends_the_broker(folder: BrokerFolder) -> None:
    first, second = await Member.start(folder.path), await Member.start(folder.path)
    await first.kill()
    await second.kill()
    await wait_until(lambda: gone(folder), 30, "the broker to stop")
    await wait_until(lambda: not Path(f"/proc/{first.server_pid}").exists(), 20, "the server's process to be gone")


async def test_eight_joiners_at_once_start_one_server(folder: BrokerFolder) -> None:
    brokers = [EmbeddedBroker(folder.path) for _ in range(5)]
    processes = [asyncio.create_task(Member.start(folder.path)) for _ in range(3)]
    options = await asyncio.gather(*(broker.join() for broker in brokers))
    members = await asyncio.gather(*processes)
    assert {each.servers[0] for each in options} | {member.url for member in members} == {options[0].servers[0]}
    assert starts(folder) == 1
    await asyncio.gather(*(member.leave() for member in members), *(broker.leave() for broker in brokers))


async def test_a_joiner_waits_for_a_broker_that_is_just_stopping(folder: BrokerFolder) -> None:
    """The guard has taken members.lock for good: the joiner gets a fresh broker, not the dying one."""
    leaving, joining = EmbeddedBroker(folder.path), EmbeddedBroker(folder.path)
    await leaving.join()
    old = folder.server_pid()
    await pause(old)
    await leaving.leave()
    await wait_until(lambda: is_locked(folder.members_lock), 20, "the guard to begin")
    join = asyncio.create_task(joining.join())
    await wait_until(lambda: is_locked(folder.election_lock), 20, "the joiner to begin")
    os.kill(old, signal.SIGCONT)
    await join
    assert folder.server_pid() != old
    await probe(record(folder).port, folder.token())
    await joining.leave()


async def test_members_that_come_and_go_always_find_a_broker(folder: BrokerFolder) -> None:
    for _ in range(6):
        broker = EmbeddedBroker(folder.path)
        options = await broker.join()
        await probe(int(options.servers[0].rsplit(":", 1)[1]), folder.token())
        await broker.leave()


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00", b"{}", b'{"port": "x"}', b"[1, 2]", b'{"port": 99999999}'])
async def test_a_damaged_record_is_ignored(folder: BrokerFolder, garbage: bytes) -> None:
    folder.prepare()
    folder.record_file.write_bytes(garbage)
    broker = EmbeddedBroker(folder.path)
    servers = (await broker.join()).servers
    pid = folder.server_pid()
    folder.record_file.write_bytes(garbage)
    other = EmbeddedBroker(folder.path)
    assert (await other.join()).servers == servers
    assert folder.server_pid() == pid
    await broker.leave()
    await other.leave()


async def test_a_stale_record_neither_leaks_the_token_nor_kills_a_process(folder: BrokerFolder) -> None:
    """The old port belongs to another program now, and the old pids to this process: neither is contacted nor signalled."""
    received = bytearray()

    async def other_program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2","max_payload":1}\r\n')
        with contextlib.closing(writer), contextlib.suppress(OSError):
            received.extend(await reader.read(4096))

    server = await asyncio.start_server(other_program, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    folder.prepare()
    stale = {"port": port, "pid": os.getpid(), "guard_pid": os.getpid()}
    folder.record_file.write_text(json.dumps(stale))
    folder.server_lock.write_text(str(os.getpid()))
    async with joined(folder) as (_, _, _):
        assert record(folder).port != port
        assert not received
    await wait_until(lambda: gone(folder), 30, "the broker to stop")
    server.close()
    await server.wait_closed()


async def test_file_modes_and_places_of_the_token(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, _, _):
        token = folder.token()
        for path in (folder.token_file, folder.config_file, folder.record_file, folder.log_file):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert len(token) >= 32
        running = record(folder)
        for pid in (running.pid, running.guard_pid, "self"):
            for kind in ("cmdline", "environ"):
                assert token.encode() not in of_process(pid, kind)
        with pytest.raises(ProbeFailed, match="refuses our token"):
            await probe(running.port, "wrong" + token)
        listening = of_process("self", "net/tcp").decode().splitlines()
        assert {line.split()[1].split(":")[0] for line in listening if f":{running.port:04X}" in line.split()[1]} == {
            "0100007F"
        }


async def test_the_token_outlives_the_broker_and_a_torn_one_is_replaced(folder: BrokerFolder) -> None:
    broker = EmbeddedBroker(folder.path)
    first = (await broker.join()).token
    await broker.leave()
    assert (await broker.join()).token == first
    await broker.leave()
    await wait_until(lambda: gone(folder), 30, "the broker to stop")
    folder.token_file.write_text("tor")
    second = (await broker.join()).token
    assert second is not None
    assert len(second) >= 32
    assert stat.S_IMODE(folder.token_file.stat().st_mode) == 0o600
    await broker.leave()


async def test_the_broker_accepts_an_envelope_of_full_size_and_has_jetstream(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, link, _), joined(folder) as (_, _, received):
        assert link.max_payload == 1_048_576 + 65_536
        assert link.server is not None
        assert link.server.jetstream
        await exchange(link, received, b"x" * 1_048_576)


async def test_a_cancelled_join_leaves_no_processes(folder: BrokerFolder) -> None:
    broker = EmbeddedBroker(folder.path)
    join = asyncio.create_task(broker.join())
    await wait_until(lambda: folder.config_file.exists(), 20, "the start to be under way")
    join.cancel()
    with pytest.raises(asyncio.CancelledError):
        await join
    assert not is_locked(folder.election_lock)
    await broker.leave()


async def test_a_removed_folder_ends_the_broker(folder: BrokerFolder) -> None:
    broker = EmbeddedBroker(folder.path)
    await broker.join()
    pid = folder.server_pid()
    folder.path.rename(folder.path.with_name("elsewhere"))
    await wait_until(lambda: not is_locked(folder.path.with_name("elsewhere") / "server.lock"), 30, "the server to end")
    await wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20, "the server's process to be gone")
    await broker.leave()


async def test_the_log_names_the_binary_its_version_and_its_checksum(
    folder: BrokerFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with joined(folder):
        line = next(line for line in map(TextFormatter().format, caplog.records) if "broker binary chosen" in line)
    chosen = find_binary(None)
    assert f"path={chosen.path}" in line
    assert f"version={chosen.version}" in line
    assert f"sha256={chosen.sha256}" in line


async def test_a_newer_binary_on_path_is_started_and_named_in_a_warning(
    folder: BrokerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newer = tmp_path / "nats-server"
    newer.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo 'nats-server: v2.99.0' && exit\nexec {find_binary(None).path} \"$@\"\n"
    )
    newer.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    async with joined(folder):
        lines = [line for line in map(TextFormatter().format, caplog.records) if "broker binary chosen" in line]
    assert [" warning " in line and f"path={newer} version=2.99.0" in line for line in lines] == [True]


async def test_a_missing_binary_is_reported(folder: BrokerFolder, tmp_path: Path) -> None:
    broker = EmbeddedBroker(folder.path, binary=tmp_path / "absent")
    with pytest.raises(BrokerError, match="absent is not an executable") as error:
        await broker.join()
    assert "broker.binary" in error.value.hint
    await broker.leave()


async def test_a_server_that_ends_at_its_start_is_quoted(folder: BrokerFolder, tmp_path: Path) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'nats-server: v2.99.0' && exit\necho 'no space left for streams' >&2\nexit 3\n"
    )
    binary.chmod(0o700)
    broker = EmbeddedBroker(folder.path, binary=binary)
    with pytest.raises(BrokerError, match="no space left for streams") as error:
        await broker.join()
    assert error.value.op == "start nats-server"
    assert str(folder.log_file) in error.value.hint
    await broker.leave()


async def test_a_binary_that_cannot_be_executed_is_named(folder: BrokerFolder, tmp_path: Path) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("not a program")
    binary.chmod(0o700)
    broker = EmbeddedBroker(folder.path, binary=binary)
    with pytest.raises(BrokerError, match="Exec format error"):
        await broker.join()
    await broker.leave()


async def test_an_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match="Not a directory") as error:
        await EmbeddedBroker(tmp_path / "file" / "broker").join()
    assert "broker.directory" in error.value.hint


@pytest.mark.parametrize("name", ["election.lock", "members.lock"])
async def test_a_lock_that_is_never_released_is_reported(folder: BrokerFolder, name: str) -> None:
    folder.prepare()
    with (folder.path / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        broker = EmbeddedBroker(folder.path, patience=0.2)
        with pytest.raises(BrokerError, match=name) as error:
            await broker.join()
        assert error.value.op == "lock the broker"
        await broker.leave()


async def test_a_server_that_hangs_is_reported_and_not_killed(folder: BrokerFolder) -> None:
    async with joined(folder) as (_, _, _):
        pid = folder.server_pid()
        await pause(pid)
        try:
            late = EmbeddedBroker(folder.path, patience=0.1)
            with pytest.raises(BrokerError, match=str(pid)):
                await late.join()
            await late.leave()
        finally:
            os.kill(pid, signal.SIGCONT)
        await probe(record(folder).port, folder.token())
