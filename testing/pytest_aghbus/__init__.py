"""The pytest plugin of aghbus: docs/testing.md.

A package of its own, because pytest rewrites the assertions of every package of a distribution with a plugin; it loads nothing
before a test uses its fixture.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.testing import Sandbox


@pytest.fixture
def aghbus_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Daemons of the test on a broker of its own: `ops, worker = aghbus_sandbox.peers("ops", "worker")`."""
    from aghbus.testing import Sandbox

    with Sandbox(tmp_path_factory.mktemp("aghbus")) as sandbox:
        yield sandbox
