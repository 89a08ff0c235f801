"""PROPOSAL and TABLES, and the table in a START, as the dictionaries of their Avro schemas."""

from __future__ import annotations

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.columns import from_json, to_json
from headgate.control_protocol.events import Answer, Proposal, Tables, TableStart
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.topic_form import Form, natural, offsets_form, offsets_of

NAME_CHARACTERS_MAX = 4_000


def table_start_form(table: TableStart) -> Form:
    return {
        "table": table.table,
        "uuid": table.uuid,
        "schema_id": table.schema_id,
        "spec_id": table.spec_id,
        "file_prefix": table.file_prefix,
        "offsets": offsets_form(table.offsets),
        "refused": [{"path": list(each.path), "reason": each.reason} for each in table.refused],
    }


def table_start_of(form: Form) -> TableStart:
    return TableStart(
        table=form["table"],
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
        spec_id=natural(form["spec_id"]),
        file_prefix=form["file_prefix"],
        offsets=offsets_of(form["offsets"]),
        refused=tuple(Refusal(tuple(each["path"]), each["reason"]) for each in form["refused"]),
    )


def proposal_form(proposal: Proposal) -> Form:
    return {
        "number": proposal.number,
        "table": proposal.table,
        "uuid": proposal.uuid,
        "schema_id": proposal.schema_id,
        "columns": to_json(proposal.columns),
        "first": offsets_form(proposal.first),
        "records": proposal.records,
        "source": proposal.source,
        "raw": proposal.raw,
    }


def proposal_of(form: Form) -> Proposal:
    """G6: build the proposal, with names of bounded length, for answers repeat them."""
    if max(len(form["table"]), len(form["raw"])) > NAME_CHARACTERS_MAX:
        raise ValueError(f"a table's name of more than {NAME_CHARACTERS_MAX} characters")
    return Proposal(
        number=natural(form["number"]),
        table=form["table"],
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
        columns=from_json(form["columns"]),
        first=offsets_of(form["first"]),
        records=natural(form["records"]),
        source=form["source"],
        raw=form["raw"],
    )


def tables_form(tables: Tables) -> Form:
    return {
        "answers": [
            {
                "member": answer.sender.member,
                "incarnation": answer.sender.incarnation,
                "number": answer.number,
            }
            for answer in tables.answers
        ],
        "tables": [table_start_form(table) for table in tables.tables],
    }


def tables_of(form: Form) -> Tables:
    return Tables(
        answers=tuple(
            Answer(Sender(each["member"], each["incarnation"]), natural(each["number"]))
            for each in form["answers"]
        ),
        tables=tuple(map(table_start_of, form["tables"])),
    )
