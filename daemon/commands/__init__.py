"""The commands of aghd, one per module; `daemon.main` imports only the one that is called. Here is the shared code."""

from aghbus.host.command_line import Argument

OK = 0
FAILED = 1
USAGE = 2
BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells report it."""

OUTPUT = Argument(
    "-o",
    "--output",
    metavar="FORM",
    choices=("human", "json"),
    default="human",
    help="form of the output: human or json",
)
