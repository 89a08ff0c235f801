"""What is remembered of records that are sent again."""

from __future__ import annotations

from headgate.kafka.record_sender import Redelivery


def test_what_was_confirmed_counts_while_the_same_is_sent_to_the_same_topic() -> None:
    again = Redelivery()
    again.forget_unless_continuing(("topic id", None))
    again.note_confirmed(7)
    again.has_failed = True
    again.forget_unless_continuing(("topic id", None))
    assert (again.confirmed, again.has_failed) == ({7}, True)
    again.forget_unless_continuing(("id of the topic made anew", None))
    assert (again.confirmed, again.has_failed) == (set(), False)
