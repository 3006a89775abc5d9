"""`aghctl demo`."""

from __future__ import annotations

import time

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.text import indented, safe
from aghbus.cli.context import Context
from aghbus.cli.sandbox.demo import Demo
from aghbus.cli.sandbox.interruptible import interruptible_sandbox
from aghbus.client.errors import ClientError
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Run every step and print it; 0 only if all of them passed. Always cleans up."""
    began = time.monotonic()
    scenes: list[dict[str, Any]] = []
    with interruptible_sandbox() as sandbox:
        try:
            good = all(_play(context, scenes, title, action) for title, action in Demo(sandbox).scenes())
        finally:
            context.output.note("(stopping the daemons and their broker, removing their folder)")
    took = round(time.monotonic() - began, 3)
    if context.output.form == "json":
        context.output.answer({"ok": good, "seconds": took, "steps": scenes}, str)
    elif good:
        context.output.note(f"demo completed in {took:.1f} s. Start your own peer: aghd run --name ops")
    return YES if good else NO


def _play(context: Context, scenes: list[dict[str, Any]], title: str, action: Any) -> bool:
    if context.output.human:
        context.output.event(title, lambda text: f"{len(scenes) + 1}. {text}")
    try:
        scene = {"step": title, "ok": True, "detail": action()}
    except ClientError as error:
        scene = {"step": title, "ok": False, "detail": error.message}
    scenes.append(scene)
    if context.output.human:
        context.output.event(scene, lambda it: indented(f"{'' if it['ok'] else 'FAILED: '}{safe(it['detail'])}", "   "))
    elif context.output.form == "jsonl":
        context.output.event(scene, str)
    return bool(scene["ok"])


COMMANDS = {
    "demo": Command(
        run,
        description=(
            "Start two temporary daemons on a temporary broker and run discovery, work, a question, completion and a\n"
            "duplicate, each step checked. Takes a few seconds, changes nothing else, cleans up on Ctrl-C too."
        ),
        examples=["aghctl demo", "aghctl demo -o json"],
    )
}
