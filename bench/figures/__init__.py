"""One file for each figure. `FIGURES` is their order in the report."""

from bench.figures import (
    cost,
    discovery,
    growth,
    hostile,
    jetstream,
    opening,
    peers,
    receive,
    rest,
    send,
    verified,
    work,
)
from bench.harness.figure import Figure

FIGURES: tuple[Figure, ...] = (
    receive.FIGURE,
    send.FIGURE,
    work.FIGURE,
    discovery.FIGURE,
    cost.FIGURE,
    growth.FIGURE,
    verified.FIGURE,
    jetstream.FIGURE,
    peers.FIGURE,
    rest.FIGURE,
    opening.FIGURE,
    hostile.FIGURE,
)
