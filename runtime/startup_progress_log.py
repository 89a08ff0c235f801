"""Says what a run waits for before its first commit, so that nobody takes waiting for hanging."""

from __future__ import annotations

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.participant.state import Phase, State

_log = redacted_logger("headgate.runtime")


class FirstCommitLog:
    """Looks at a participant after each turn, and logs two lines: what is awaited, what was met."""

    def __init__(self, settings: SinkSettings) -> None:
        self._sink = settings.name
        self._interval_ms = settings.coordinator.commit_interval_ms
        self._awaited = self._over = False

    def log_progress_if_new(self, state: State) -> None:
        """Log what is new to a person, if anything is."""
        if self._over:
            return
        places = state.positions
        known = bool(places) and places.keys() <= state.source.looked
        if not self._awaited and state.phase is Phase.WRITING and known:
            self._awaited = True
            waiting = sum(max(0, state.source.ends.get(p, at) - at) for p, at in places.items())
            self._log_text(
                state,
                f"{waiting:,} offsets of {len(places)} partitions wait to be read, for the first "
                f"commit at the latest; there is one every {self._interval_ms / 1000:g} s "
                "(coordinator.commit_interval_ms)",
            )
        if self._awaited and state.work.has_unannounced_ranges:
            self._over = True
            self._log_text(state, _describe_progress(state))
        self._over = self._over or bool(state.said.pending)

    def _log_text(self, state: State, text: str) -> None:
        extra = event_extra(LogEvent.COMMIT_AWAITED, epoch=state.term.epoch)
        _log.info("sink %s: %s", self._sink, text, extra=extra)


def _describe_progress(state: State) -> str:
    ranges = [own.work for own in state.work.owned.values() if own.work]
    read = sum(len(each.range) for each in ranges)
    rows, bad = sum(each.records for each in ranges), sum(each.bad for each in ranges)
    aside = sum(each.quarantined + each.skipped for each in ranges)
    met = f"{rows:,} rows, {bad:,} bad" + (f" ({aside:,} not in the table)" if aside else "")
    return f"{read:,} offsets read: {met}; the next commit has them"
