"""Settings of the whole suite, and fixtures of several folders."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.daemons import Daemon, Home
from tests.support.natsutil import NatsServer

# A shared machine stalls for half a second at times: how long an example takes says nothing about the code.
# So many examples find what they find over the days; `--hypothesis-profile thorough` (make test-long) looks harder at once.
settings.register_profile("aghbus", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile("aghbus")

# Who starts the suite in the background of a script (`make test &`) hands it SIGINT ignored, which every process that a test
# starts and interrupts would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Daemon.forked = True


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """With JetStream, as the embedded broker has it."""
    async with NatsServer(jetstream=True) as running:
        yield running
