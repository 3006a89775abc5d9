"""Daemons for a few lines of a notebook, or for the setUp of a unittest."""

from aghbus.testing import Sandbox

with Sandbox() as sandbox:
    ops, worker = sandbox.peers("ops", "worker", capabilities={"worker": ["test.run"]})
    work = ops.client().start("worker", "Run the smoke test", intent="test.run")
    for job in worker.client().jobs(capability="test.run"):
        job.complete(result={"passed": "smoke" in job.text})
        break
    print(work.result(timeout=10).result)
