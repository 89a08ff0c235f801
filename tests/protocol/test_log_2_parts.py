"""LOG-2: a status in parts counts once whole, at the place of its last missing part."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, BOB, P0, P1, data_file, folder, log_record, offsets, status
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol.events import LogRecord, WriteStatus
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.control_protocol.message_encoding import Skipped, SkipReason, Wire, encode_envelope
from headgate.control_protocol.multipart_status import Assembler, split_status
from headgate.coordinator.phases import Phase

AT = offsets(10, 20)
FILES = tuple(data_file(f"{folder(EPOCH, 1)}/{k}.parquet", 1) for k in range(6))
LARGE = status(1, {P0: (10, 16), P1: (20, 20)}, files=FILES)
PARTS = split_status(LARGE, 300)


def test_the_example_travels_in_several_parts() -> None:
    assert len(PARTS) >= 3


def test_hc38_it_counts_once_whole_and_not_before() -> None:
    assembler = Assembler()
    *early, last = [part_at(40 + k, part) for k, part in enumerate(PARTS)]
    assert [assembler.add_and_pop_if_whole(record.envelope) for record in early] == [None] * len(
        early
    )

    whole = assembler.add_and_pop_if_whole(last.envelope)
    assert whole is not None
    assert whole.event == LARGE


def test_its_place_is_that_of_the_last_missing_part_in_any_order() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    first = coordinator.next_offset
    log = [part_at(first + k, part) for k, part in enumerate(reversed(PARTS))]
    hear(coordinator, *log)

    (heard,) = coordinator.term.collection.statuses
    assert heard.offset == log[-1].offset
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(16, 20)


def test_a_status_without_its_last_part_is_not_judged() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    first = coordinator.next_offset
    hear(coordinator, *[part_at(first + k, part) for k, part in enumerate(PARTS[:-1])])
    coordinator.waits(500)

    assert coordinator.term.progress.offsets == AT
    assert coordinator.phase is Phase.SETTLING


def test_sent_again_after_a_lost_confirmation_the_parts_make_one_status() -> None:
    """Only some of the first try's parts are in the log."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    tries = [*PARTS[:1], *PARTS]
    first = coordinator.next_offset
    log = [part_at(first + k, part) for k, part in enumerate(tries)]
    hear(coordinator, *log)

    (heard,) = coordinator.term.collection.statuses
    assert heard.status == LARGE
    assert heard.offset == log[-1].offset


def test_parts_of_two_senders_are_never_mixed() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    first = coordinator.next_offset
    hear(coordinator, *[part_at(first + k, part) for k, part in enumerate(PARTS[:-1])])
    hear(coordinator, part_at(first + len(PARTS), PARTS[-1], BOB))

    assert coordinator.term.collection.statuses == ()


def test_a_status_that_is_still_unheard_holds_the_next_one_back() -> None:
    """Else a later number could be judged first, and the earlier one never."""
    participant = Participant.writing(AT)
    first = participant.answers(1, {P0: 15, P1: 20})
    participant.start(2, AT, settled_to=12)
    participant.end(2)
    participant.source_ends({P0: 15})
    for _ in range(5):
        participant.waits(10)
        assert participant.said == []
    participant.hears_itself()

    assert participant.status.status_number == first.status_number + 1


def part_at(offset: int, part: WriteStatus, sender: Sender = ALICE) -> LogRecord:
    return log_record(offset, part, sender, epoch=EPOCH, transaction=1)


def hear(coordinator: Coordinator, *log: LogRecord) -> None:
    """As the driver does: parts are put together, and a whole status stands at its last part."""
    assembler = Assembler()
    for record in log:
        whole = assembler.add_and_pop_if_whole(record.envelope)
        coordinator.next_offset = record.offset
        if whole is not None:
            coordinator.hears(whole.event, whole.sender, transaction=1)


def test_a_participant_passes_over_others_statuses_and_hears_all_else() -> None:
    own, other = Sender("own", "life"), Sender("other", "life")
    wire = Wire(envelope(EXAMPLES["write-status"]).sink, statuses_of=own)
    for name, example in EXAMPLES.items():
        for sender in (own, other, replace(own, incarnation="earlier")):
            said = envelope(example, sender=sender)
            read = wire.verify_and_decode(encode_envelope(said), TopicId(""))
            if name == "write-status" and sender != own:
                assert read == Skipped(SkipReason.OTHER_SENDER)
            else:
                assert read == said


def test_a_status_that_breaks_off_is_reported_whoever_wrote_it() -> None:
    message = encode_envelope(envelope(EXAMPLES["write-status"]))[:15]
    wire = Wire(envelope(EXAMPLES["write-status"]).sink, statuses_of=Sender("own", "life"))
    read = wire.verify_and_decode(message, TopicId(""))
    assert isinstance(read, Skipped)
    assert read.reason is not SkipReason.OTHER_SENDER
