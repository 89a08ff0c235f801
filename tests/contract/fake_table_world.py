"""The contract's world over the shipped fakes."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from headgate.control_protocol.commit_record_codec import claim_marker_property
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName, TopicId, tag_name
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, PrimaryTable
from headgate.control_protocol.testing import CommitFault, FakeCatalog, FakeTable, SourceRecord


class FakeWorld:
    """A file's number is the offset of its one record."""

    def __init__(self, _folder: Path) -> None:
        self._catalog = FakeCatalog()
        self._one_call = Lock()

    def rename(self, table: str) -> None:
        self._catalog.table = table

    def open(self, sink: str = "sink", branch: str = "main") -> PrimaryTable:
        return _OneCallAtATime(self._catalog, SinkName(sink), branch, self._one_call)

    def write_file(self, number: int) -> WrittenFile:
        record = SourceRecord(TopicId("id-of-trips"), "trips", 0, number)
        return self._catalog.storage.write("memory://files-", [record])

    def visible_file_numbers(self, branch: str = "main") -> list[int]:
        return sorted(record.offset for record in self._catalog.visible_rows(branch))

    def append_foreign(self, number: int, branch: str = "main") -> None:
        self._catalog.append_foreign([self.write_file(number)], branch)

    def compact(self) -> None:
        self._catalog.compact()

    def expire_all(self) -> None:
        self._catalog.expire_snapshots(keep=1)

    def lose_history(self) -> None:
        self._catalog.log_lost = True

    def roll_back(self, snapshot_id: int) -> None:
        self._catalog.roll_back(snapshot_id)

    def delete_tag(self, sink: str = "sink") -> None:
        self._catalog.delete_tag(tag_name(SinkName(sink)))

    def delete_claim_marker(self, sink: str = "sink") -> None:
        del self._catalog.properties[claim_marker_property(SinkName(sink))]

    def recreate(self) -> None:
        self._catalog.recreate()

    def drop(self) -> None:
        self._catalog.drop()

    def lose_next_answer(self, *, landed: bool) -> None:
        fault = CommitFault.LANDED_UNKNOWN if landed else CommitFault.LOST_UNKNOWN
        self._catalog.faults.append(fault)

    def close(self) -> None:
        pass


class _OneCallAtATime(FakeTable):
    """The fake catalog is of one thread; calls to a server come in some order, too."""

    def __init__(self, catalog: FakeCatalog, sink: SinkName, branch: str, one_call: Lock) -> None:
        super().__init__(catalog, sink, branch)
        self._one_call = one_call

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        with self._one_call:
            return super().commit(attempt)
