"""A whole worker: several works at a time, until SIGTERM."""

from aghbus.client import AsyncJob, Job, Worker

worker = Worker(concurrency=4)


@worker.capability("test.run")
async def run_tests(job: AsyncJob) -> dict[str, object]:
    branch = await job.ask("Which branch?")
    await job.update(f"testing {branch}")
    return {"branch": branch, "passed": "smoke" in job.text, "attempt": job.attempt}


@worker.capability("text.count")
def count_words(job: Job) -> dict[str, object]:
    return {"words": len(job.text.split())}


if __name__ == "__main__":
    worker.run()
