"""The names of all commands, the file of each and one line of help. Only the one that is wanted gets imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from aghbus.cli.app.arguments import Command

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
    "bridge": ("bridge", "be the agent's way onto the bus in another format"),
    "bridge humaninloop apply": ("bridge_apply", "write the artifacts of a completed work under a feature root"),
    "bridge sentient log": ("bridge_log", "print the audit log of the sentient agent"),
    "bridge agentos log": ("bridge_log", "print the message log of the AgentOS agent"),
    "bridge sacp log": ("bridge_log", "print the audit table of the SACP agent"),
    "bridge sacp prompt": ("bridge_prompt", "print what a system prompt must say about SACP (offline)"),
    "chain run": ("chain_run", "run a chain file: each node is a work"),
    "chain show": ("chain_read", "show one run with its nodes"),
    "chain list": ("chain_read", "list runs, latest first"),
    "chain watch": ("chain_watch", "stream a run's steps until it ends"),
    "chain resume": ("chain_resume", "answer what a waiting run asks"),
    "chain cancel": ("chain_cancel", "call a run off"),
    "chain check": ("chain_check", "check a chain file (offline)"),
    "convert": ("convert", "convert between the bus form and the four other formats (offline)"),
    "key generate": ("key", "make the daemon's private key, and with it a verified handle (offline)"),
    "key show": ("key", "show the names that follow from our key (offline)"),
    "key export-public": ("key", "print the public key (offline)"),
    "key rotate": ("key", "replace our key, with a statement that the old one signs (offline)"),
    "trust list": ("trust", "list whom the daemon listens to, and who said so"),
    "trust pin": ("trust", "let only one key bear a nickname"),
    "trust unpin": ("trust", "let any key bear a nickname again"),
    "trust allow": ("trust", "listen to a key, or let somebody open work or talk on a channel"),
    "trust deny": ("trust", "listen to a key no more"),
    "trust why": ("trust", "explain why a message was listened to or refused"),
    "audit verify": ("audit", "check that no row of the audit log was changed, removed or moved (offline)"),
    "audit head": ("audit", "print the newest row's hash, to be kept elsewhere (offline)"),
    "audit export": ("audit", "print the audit log as JSON lines (offline)"),
    "nats permissions": ("nats_permissions", "print what peers may publish and subscribe on a NATS server"),
    "id route": ("identifiers", "route token of a peer (offline)"),
    "id direct": ("identifiers", "id of the direct room of two peers (offline)"),
    "doctor": ("doctor", "check the environment step by step"),
    "demo": ("demo", "play discovery and work with two throw-away peers"),
    "bench": ("bench", "measure two throw-away peers on your broker"),
    "completion": ("completion", "print a completion script for a shell"),
    "version": ("version", "print the version"),
}
"""Full name → (module below `PACKAGE`, help). The order is that of `aghctl --help`."""

GROUPS = {
    "work": "hand over work, take it, report on it and follow it",
    "chain": "works that follow each other by the conditions of a file",
    "inbox": "messages that wait for our agent",
    "messages": "stored envelopes of both directions",
    "capability": "our capability catalog and digests",
    "artifact": "content that does not fit an envelope, in the network's object store",
    "envelope": "debug envelopes of any peer (offline)",
    "key": "our private key, and the handle that follows from it (offline)",
    "trust": "whom the daemon listens to",
    "audit": "the hash-chained log of what was sent, received, refused, delivered and decided (offline)",
    "nats": "the NATS server that the peers share",
    "id": "derived identifiers (offline)",
}
"""First words that need a second one."""


def longest(words: Sequence[str]) -> str:
    """The longest name of a command that `words` begin with; empty when there is none."""
    found = (" ".join(words[:count]) for count in (3, 2, 1))
    return next((name for name in found if name in COMMANDS), "")


def branches() -> list[str]:
    """The first two words of the commands that have three: the command of the first word takes them too."""
    return list(dict.fromkeys(" ".join(name.split()[:2]) for name in COMMANDS if len(name.split()) == 3))


def ways(branch: str) -> list[str]:
    """The third words of a branch, in order."""
    return [name.split()[2] for name in COMMANDS if name.startswith(branch + " ")]


def members(group: str) -> list[str]:
    """The second words of a group, in order."""
    return [name.split()[1] for name in COMMANDS if name.startswith(group + " ")]


def load(name: str) -> Command:
    """The declaration of the command called `name`, from its own file."""
    module = __import__(f"{PACKAGE}.{COMMANDS[name][0]}", fromlist=["COMMANDS"])
    command: Command = module.COMMANDS[name]
    return command
