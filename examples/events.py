"""Print every change of a work, from the beginning of the store on."""

from aghbus.client import Client

for event in Client.from_env().events(kinds=frozenset({"say", "trace", "receipt"}), since=0):
    if event.message is None:
        print(f"removed by retention: {event.pruned_from} to {event.seq}")
    elif event.work is not None:
        print(event.seq, event.work.work_id, event.work.event, event.work.after)
