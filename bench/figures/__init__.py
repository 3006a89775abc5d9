"""One file for each figure. `FIGURES` is their order in the report."""

from bench.figures import (
    agents,
    cost,
    discovery,
    growth,
    hostile,
    jetstream,
    messages,
    opening,
    receive,
    rest,
    send,
    verified,
    work,
)
from bench.harness.figure import Figure

FIGURES: tuple[Figure, ...] = (
    agents.FIGURE,
    messages.FIGURE,
    receive.FIGURE,
    send.FIGURE,
    work.FIGURE,
    discovery.FIGURE,
    cost.FIGURE,
    growth.FIGURE,
    verified.FIGURE,
    jetstream.FIGURE,
    rest.FIGURE,
    opening.FIGURE,
    hostile.FIGURE,
)
