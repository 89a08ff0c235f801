"""WRITE-STATUS as the dictionary of its Avro schema, and back: claims, and files per table."""

from __future__ import annotations

from headgate.control_protocol.events import Claim, FileKind, TableStatus, WriteStatus, WrittenFile
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.topic_form import (
    Form,
    by_topic,
    natural,
    once,
    partition_of,
    partitions_form,
    partitions_of,
)

PARTS_MAX = 1024


def status_form(status: WriteStatus) -> Form:
    return {
        "status_number": status.status_number,
        "part": status.part,
        "parts": status.parts,
        "claims": [
            {"topic": topic, "claims": [_claim_form(n, claim) for n, claim in claims.items()]}
            for topic, claims in by_topic(status.claims).items()
        ],
        "tables": [_table_status_form(table) for table in status.tables],
        "unknown": partitions_form(status.unknown),
        "failure": status.failure,
        "troubles": dict(status.troubles),
    }


def status_of(form: Form) -> WriteStatus:
    if not 0 <= form["part"] < form["parts"] <= PARTS_MAX:
        raise ValueError(f"a status cannot have a part {form['part']} of {form['parts']}")
    tables = tuple(_table_status(table) for table in form["tables"])
    if len({(table.table, table.uuid) for table in tables}) < len(tables):
        raise ValueError("a table is named twice")
    return WriteStatus(
        status_number=natural(form["status_number"]),
        claims=once(
            (partition_of(topic["topic"], claim["partition"]), _claim(claim))
            for topic in form["claims"]
            for claim in topic["claims"]
        ),
        tables=tables,
        unknown=partitions_of(form["unknown"]),
        failure=form["failure"],
        part=form["part"],
        parts=form["parts"],
        troubles=form["troubles"],
    )


def _table_status_form(table: TableStatus) -> Form:
    return {
        "table": table.table,
        "uuid": table.uuid,
        "schema_id": table.schema_id,
        "files": [_file_form(file) for file in table.files],
    }


def _table_status(form: Form) -> TableStatus:
    return TableStatus(
        table=form["table"],
        files=tuple(_file(file) for file in form["files"]),
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
    )


def _claim_form(partition: int, claim: Claim) -> Form:
    return {
        "partition": partition,
        "begin": claim.range.begin,
        "end": claim.range.end,
        "records": claim.records,
        "quarantined": claim.quarantined,
        "skipped": claim.skipped,
        "bad": claim.bad,
        "bytes_read": claim.bytes_read,
        "max_timestamp_ms": claim.max_timestamp_ms,
        "deleted": claim.deleted,
    }


def _claim(form: Form) -> Claim:
    return Claim(
        range=OffsetRange(natural(form["begin"]), natural(form["end"])),
        records=natural(form["records"]),
        quarantined=natural(form["quarantined"]),
        skipped=natural(form["skipped"]),
        bad=natural(form["bad"]),
        bytes_read=natural(form["bytes_read"]),
        max_timestamp_ms=form["max_timestamp_ms"],
        deleted=natural(form["deleted"]),
    )


def _file_form(file: WrittenFile) -> Form:
    return {
        "path": file.path,
        "records": file.records,
        "size_bytes": file.size_bytes,
        "kind": file.kind.value,
        "detail": file.detail,
    }


def _file(form: Form) -> WrittenFile:
    return WrittenFile(
        path=form["path"],
        records=natural(form["records"]),
        size_bytes=natural(form["size_bytes"]),
        kind=FileKind(form["kind"]),
        detail=form["detail"],
    )
