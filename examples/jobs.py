"""Handle works one by one, in the order of their arrival."""

import subprocess

from aghbus.client import Client

for job in Client.from_env().jobs(capability="test.run"):
    with job:
        done = subprocess.run(["python", "-c", "print('ok')"], capture_output=True, text=True, check=False)
        job.complete(result={"exit_code": done.returncode, "output": done.stdout, "attempt": job.attempt})
