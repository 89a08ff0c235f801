"""LOG-4, LOG-6 and RANGE-2 before an outsider who writes to the control topic
(``simulation/forger.py``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

import headgate.control_protocol.testing.log as fake_log
from headgate.control_protocol import message_encoding
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import LEAP_MAX
from headgate.control_protocol.message_encoding import Skipped
from headgate.control_protocol.signatures import Keys, split_signed_message
from headgate.coordinator import machine, status_validation
from headgate.coordinator.state import State
from headgate.participant import machine as participant

FAMILY = Family()


@FAMILY.replaces("LOG-4", (fake_log, "_read"))
def hears_unsigned(right: Any, wire: Any, message: bytes, topic_id: Any) -> Envelope | Skipped:
    """What nobody signed is heard, though there is a key."""
    unsigned = split_signed_message(message) is None
    return message_encoding.decode_envelope(message) if unsigned else right(wire, message, topic_id)


@FAMILY.replaces("LOG-4", (Keys, "is_genuine"))
def any_signature(_right: Any, *_: object) -> bool:
    """Whatever is sealed is taken for genuine."""
    return True


@FAMILY.replaces("LOG-6", (participant, "is_believed"))
def no_leap_is_followed(right: Any, state: Any, record: Any) -> bool:
    """A participant follows no coordinator that had to leap further than it knows."""
    said = record.envelope
    known = state.term.epoch
    leaps = known and said.epoch > known + LEAP_MAX
    return bool(right(state, record)) and not leaps


@FAMILY.replaces("LOG-6", (participant, "is_believed"))
def nobody_leads_back(right: Any, state: Any, record: Any) -> bool:
    """From a START that leapt no START leads back."""
    return bool(right(state, record)) and record.envelope.epoch >= state.term.epoch


@FAMILY.replaces("LOG-6", (machine, "is_future_transaction"))
def its_own_voice(_right: Any, *_: object) -> bool:
    """A coordinator takes no notice of who speaks in its name."""
    return False


@FAMILY.replaces("LOG-6", (machine, "is_repeated_event"))
def silenced_by_a_number(right: Any, state: State, said: Any) -> bool:
    """Whoever is below the highest number is late, however far below."""
    window = state.watch.windows.get(said.sender)
    return bool(right(state, said)) or (window is not None and said.sequence < window.highest)


@FAMILY.replaces("LOG-6", (participant, "_on_own_event"))
def counts_as_ever(right: Any, state: Any, record: Any) -> Any:
    """A participant counts its own statuses, whatever was said in its name."""
    after = right(state, record)
    said = replace(
        after.said,
        status_number=state.said.status_number,
        sequence=state.said.sequence,
        unheeded=0,
    )
    return replace(after, said=said)


@FAMILY.replaces("LOG-6", (participant, "with_own_sequence_heard"))
def leaps_are_forgotten(right: Any, state: Any, sequence: int) -> Any:
    """A participant comes near a number that it did not follow, and coordinators believe."""
    after = right(state, sequence)
    return replace(after, said=replace(after.said, leapt=0))


@FAMILY.replaces("RANGE-2", (status_validation, "_check_ranges_within_logs"))
def beyond_the_end(_right: Any, *_: object) -> None:
    """Records that the log does not hold are taken for read."""


@FAMILY.replaces("RANGE-2", (status_validation, "_check_settings_and_committed"))
def skips_what_no_setting_skips(right: Any, status: Any, by: Any) -> Any:
    """Records may be skipped, whatever the settings say."""
    return right(status, replace(by, may_skip=True))


@FAMILY.replaces("RANGE-2", (status_validation, "_check_settings_and_committed"))
def commits_a_file_again(right: Any, status: Any, by: Any) -> Any:
    """What is in the table already is let in once more."""
    return right(status, replace(by, committed={}))


@FAMILY.replaces("RANGE-2", (status_validation, "_check_counts"))
def rows_as_they_come(_right: Any, *_: object) -> None:
    """Row counts are not compared."""


@FAMILY.replaces("RANGE-2", (status_validation, "_check_quarantine"))
def nobodys_quarantine(_right: Any, *_: object) -> None:
    """Records are taken for quarantined that no quarantine holds."""


@FAMILY.patches("RANGE-2")
def detours_are_fine() -> tuple[Planted, ...]:
    """Of a path only the beginning is looked at."""
    return (
        (
            status_validation.Prefixes,
            "is_allowed",
            lambda self, path, _: path.startswith(self.root + "/"),
        ),
    )
