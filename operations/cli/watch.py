"""Shows a sink's status repeatedly, on one screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import RetryLater
from headgate.operations.render import show_status
from headgate.operations.status.status import status


def watch(console: Console, settings: SinkSettings, every_s: float) -> None:
    """Block until Ctrl-C. What does not answer is reported, and asked again."""
    try:
        if not console.is_terminal:
            for picture in pictures(console, settings, every_s):
                console.print(picture)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for picture in pictures(console, settings, every_s):
                live.update(picture, refresh=True)
    except KeyboardInterrupt:
        return


def pictures(
    console: Console, settings: SinkSettings, every_s: float, number: int | None = None
) -> Iterator[RenderableType]:
    """Yield one picture per look, ``number`` of them or without end."""
    for look in count(1):
        yield _picture(console, settings)
        if look == number:
            return
        time.sleep(every_s)


def _picture(console: Console, settings: SinkSettings) -> RenderableType:
    with console.capture() as capture:
        try:
            show_status(console, status(settings, with_age=True))
        except RetryLater as error:
            console.print(Text(settings.redacted(str(error)), "bold red"))
    return Group(Text.from_ansi(capture.get()), Text(time.strftime("%H:%M:%S"), "dim"))
