"""Both clients have a method for every route, and an exception class for every code; importing them is cheap."""

import inspect
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

import aghbus
from aghbus import client as package
from aghbus.client import AsyncClient, AsyncJob, Client, ClientError, Endpoint, Job, RefusedByDaemon, Unexpected
from aghbus.client.core.method import Method, StreamMethod

DOCS: Final = Path(__file__).parents[2] / "docs"
PATHS: Final = json.loads((DOCS / "openapi.json").read_text())["paths"]
OPERATIONS: Final = {
    f"{method.upper()} {path}": operation for path, methods in PATHS.items() for method, operation in methods.items()
}


def declared(form: type) -> dict[str, Method[..., Any] | StreamMethod[..., Any]]:
    """The methods and streams of a class, by name."""
    found = {name: inspect.getattr_static(form, name) for name in dir(form)}
    return {name: one for name, one in found.items() if isinstance(one, Method | StreamMethod)}


@pytest.mark.parametrize("form", [Client, AsyncClient])
def test_every_route_has_one_method(form: type) -> None:
    routes = [method.route for method in declared(form).values() if method.route]
    assert sorted(routes) == sorted(OPERATIONS)


def test_both_clients_and_both_jobs_have_the_same_methods() -> None:
    assert declared(Client) == declared(AsyncClient)
    assert declared(Job) == declared(AsyncJob)


def test_help_shows_summary_parameters_and_answer_of_a_route() -> None:
    for name, method in declared(Client).items():
        shown = getattr(Client, name)
        assert method.route in (inspect.getdoc(shown) or ""), name
        if method.route and not isinstance(method, StreamMethod) and name != "put_artifact":
            operation = OPERATIONS[method.route]
            assert (inspect.getdoc(shown) or "").startswith(operation["summary"]), name
    signature = inspect.signature(Client.open_work)
    assert list(signature.parameters)[:3] == ["self", "to", "text"]
    assert str(inspect.signature(Client.work)) == (
        "(self, work_id, /, channel=None, before=None, wait=0.0) -> aghbus.protocol.api.works.WorkResponse"
    )


def test_every_code_of_the_page_has_an_exception_class() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", (DOCS / "api.md").read_text(), re.MULTILINE)
    classes: dict[str, type[ClientError]] = {form.default_code: form for form in RefusedByDaemon.__subclasses__()}
    classes["internal"] = package.Internal
    assert {code for code, _ in rows} == set(classes)
    for code, form in classes.items():
        assert form.__name__ in package.__all__, code
        assert issubclass(form, RefusedByDaemon if code != "internal" else Unexpected)


def test_every_public_name_is_there_and_documented() -> None:
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name


def imported(statement: str) -> tuple[float, float]:
    """Processor time in seconds and memory in MB of an interpreter that imports: the best of several, because other processes
    disturb both."""
    program = (
        f"import time; start = time.process_time(); {statement}; seconds = time.process_time() - start;"
        "print(seconds, int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024)"
    )
    command = [sys.executable, "-I", "-c", program]
    done = (subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.split() for _ in range(7))
    seconds, megabytes = zip(*(map(float, each) for each in done), strict=True)
    return min(seconds), min(megabytes)


@pytest.mark.parametrize("name", ["Client", "AsyncClient", "Worker"])
def test_importing_costs_at_most_100_ms_of_processor_time_and_25_mb(name: str) -> None:
    """On a slow machine, 2.5 times as long as what the asynchronous client stands on."""
    runtime = "threads" if name == "Client" else "aio"
    seconds, megabytes = imported(f"from aghbus.client import {name}; import aghbus.client.core.{runtime}")
    assert seconds <= 0.1 or seconds <= 2.5 * imported("import asyncio, hashlib, json, msgspec")[0]
    assert megabytes <= 25


def test_the_client_loads_the_standard_library_and_msgspec_only() -> None:
    program = "import sys; from aghbus.client import Worker, Client; Client.whois; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True, timeout=60)
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    loaded = {name.partition(".")[0] for name in set(done.stdout.split()) - set(bare.stdout.split())}
    assert loaded - set(sys.stdlib_module_names) <= {
        "aghbus",
        "msgspec",
        "typing_extensions",
        "__editable___aghbus_0_1_0_finder",
    }


def test_the_package_has_a_version_and_clients_are_context_managers() -> None:
    assert aghbus.__version__ == metadata.version("aghbus")
    with Client(Endpoint(path="/nowhere/ops.sock")) as client:
        assert "/nowhere/ops.sock" in repr(client)
