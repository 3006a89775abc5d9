"""Settings that are valid, and with which other implementations do not accept this daemon (docs/interop.md)."""

from collections.abc import Iterator

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.catalog import Catalog
from aghbus.protocol.agh.discovery import TASK_WRITE
from aghbus.protocol.agh.limits import GREET_INTERVAL
from aghbus.protocol.base.durations import format_duration
from aghbus.protocol.base.refused_text import refused_paths


def interoperability_notes(settings: Settings, catalog: Catalog, *, signed: bool | None) -> list[str]:
    """One sentence for each. `signed` is None if that is not known."""
    return [*_interval(settings), *_task_write(catalog, signed=signed), *_refused_texts(settings, catalog)]


def _interval(settings: Settings) -> Iterator[str]:
    interval = settings.discovery.interval
    if interval > GREET_INTERVAL:
        yield (
            f"discovery.interval is {format_duration(interval)}: peers with the default of {GREET_INTERVAL}s show this daemon as "
            f"inactive after {GREET_INTERVAL}s without a greet, and drop it after {2 * GREET_INTERVAL}s"
        )


def _task_write(catalog: Catalog, *, signed: bool | None) -> Iterator[str]:
    announced = {*catalog.claims, *(record.id for record in catalog.records)}
    if signed is False and TASK_WRITE in announced:
        yield (
            f"capability {TASK_WRITE} is announced without a signature: other implementations refuse every greet of this daemon; "
            "remove it, or create a key with `aghctl key generate`"
        )


def _refused_texts(settings: Settings, catalog: Catalog) -> Iterator[str]:
    card = {"display_name": settings.display_name, "summary": settings.summary}
    texts = {**card, **{f"capability {one.id}": one.document for one in catalog.records}}
    for where, value in texts.items():
        form = next((form for _, form in refused_paths(value)), None)
        if form is not None:
            yield (
                f"{where} has text in the form of a credential (pattern {form}): other implementations refuse greets and answers "
                "with it"
            )
