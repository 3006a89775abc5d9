"""Writes reports: asks for the title, and returns the report as a file."""

from aghbus.client import Client, Job, Worker

client = Client.from_env("writer")
worker = Worker(name="writer", lease=10)  # seconds after which a dead worker loses its works


@worker.capability("text.report")
def write_report(job: Job) -> None:
    title = job.ask("Which title?")
    job.update(f"writing {title}")
    report = f"# {title}\n\n{len(job.text.split())} words, attempt {job.attempt}\n"
    stored = client.put_artifact(job.work_id, "report.md", report.encode())
    job.complete("the report is written", artifacts=[{"type": "file", "name": stored.name, "uri": stored.uri}])


if __name__ == "__main__":
    worker.run()
