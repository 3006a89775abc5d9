"""The names of all commands, the file of each and one line of help. Only the one that is wanted gets imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.cli.arguments import Command

PACKAGE = "aghbus.cli.commands"

COMMANDS = {
    "status": ("status", "show the daemon, its broker link, its store and its counters"),
    "peers": ("peers", "list the peers that presence knows"),
    "whois": ("whois", "ask the network who is there or who can do something"),
    "say": ("say", "send conversation text"),
    "work open": ("work_open", "hand work to a peer"),
    "work list": ("work_read", "list works, latest change first"),
    "work show": ("work_read", "show one work with its history"),
    "work watch": ("work_watch", "stream a work's receipts and traces until it ends"),
    "work accept": ("work_verbs", "accept a work that was handed to us"),
    "work update": ("work_verbs", "report progress: trace working"),
    "work need-input": ("work_verbs", "ask the initiator for something: trace needs_input"),
    "work complete": ("work_verbs", "finish a work with its result: trace completed"),
    "work fail": ("work_verbs", "end a work as failed: trace failed"),
    "work reject": ("work_verbs", "turn a work down: receipt rejected"),
    "work cancel": ("work_verbs", "call a work off: receipt or trace canceled"),
    "work say": ("work_verbs", "say something inside a work"),
    "traces": ("traces", "stream traces and receipts as they happen"),
    "serve": ("serve", "make any command a worker (docs/serve.md)"),
    "inbox list": ("inbox_list", "list what waits for the agent"),
    "inbox next": ("inbox_next", "take the oldest message"),
    "inbox ack": ("inbox_settle", "a message is dealt with: take it out for good"),
    "inbox nack": ("inbox_settle", "give a message back to the queue"),
    "inbox requeue": ("inbox_settle", "make a dead message ready again"),
    "inbox follow": ("inbox_follow", "stream unread messages as they come"),
    "messages list": ("messages", "list stored envelopes"),
    "messages show": ("messages", "show one envelope and what became of it"),
    "threads": ("conversations", "list threads, latest activity first"),
    "directs": ("conversations", "list our direct rooms, latest activity first"),
    "capability list": ("capability", "list our own catalog"),
    "capability show": ("capability", "show one record of our catalog"),
    "capability send": ("capability_send", "send a record of our catalog"),
    "capability digest": ("capability_digest", "compute digests of capability documents (offline)"),
    "artifact put": ("artifact_put", "store a file for the others to fetch"),
    "artifact get": ("artifact_get", "fetch an artifact into a file"),
    "artifact list": ("artifact_list", "list artifacts"),
    "quarantine": ("quarantine", "list refused envelopes"),
    "envelope check": ("envelope_check", "judge envelopes by the protocol's rules (offline)"),
    "envelope replay": ("envelope_replay", "replay envelopes as one receiver's state (offline)"),
    "id route": ("identifiers", "route token of a peer (offline)"),
    "id direct": ("identifiers", "id of the direct room of two peers (offline)"),
    "doctor": ("doctor", "check the environment step by step"),
    "demo": ("demo", "play discovery and work with two throw-away peers"),
    "completion": ("completion", "print a completion script for a shell"),
    "version": ("version", "print the version"),
}
"""Full name → (module below `PACKAGE`, help). The order is that of `aghctl --help`."""

GROUPS = {
    "work": "hand over work, take it, report on it and follow it",
    "inbox": "messages that wait for our agent",
    "messages": "stored envelopes of both directions",
    "capability": "our capability catalog and digests",
    "artifact": "content that does not fit an envelope, in the network's object store",
    "envelope": "debug envelopes of any peer (offline)",
    "id": "derived identifiers (offline)",
}
"""First words that need a second one."""


def members(group: str) -> list[str]:
    """The second words of a group, in order."""
    return [name.split()[1] for name in COMMANDS if name.startswith(group + " ")]


def load(name: str) -> Command:
    """The declaration of the command called `name`, from its own file."""
    module = __import__(f"{PACKAGE}.{COMMANDS[name][0]}", fromlist=["COMMANDS"])
    command: Command = module.COMMANDS[name]
    return command
