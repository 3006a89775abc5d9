"""A running daemon answers every route that only reads as its OpenAPI document says."""

from pathlib import Path

from aghbus.protocol.agh.limits import PROTOCOL
from tests.support.daemons import Daemon, Home


def test_a_running_daemon_responds_with_the_fields_of_its_document(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        document = ops.get("/openapi.json")
        read = 0
        for path, methods in document["paths"].items():
            operation = methods.get("get")
            if operation is None or "{" in path or path == "/openapi.json":
                continue
            media = operation["responses"]["200"]["content"].get("application/json")
            if media is not None:  # not a stream
                schema = document["components"]["schemas"][media["schema"]["$ref"].rpartition("/")[2]]
                assert set(ops.get(path)) == set(schema["properties"]), path
                read += 1
        assert read > 12
        version = ops.get("/v1/version")
        assert (version["name"], version["protocol"], version["api"]) == ("aghbus", PROTOCOL, "v1")
        assert version["version"][0].isdigit()
        assert ops.get("/healthz") == {"alive": True}
