"""Which of the tables with a fitting name are the sink's, and whose readers are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headgate.operations.access.tables import open_tagged_and_known_tables
from headgate.runtime.sink_tables import TableAtRest


class Tables:
    """Two tables have a fitting name; only one has the sink's tag."""

    name = "db.ledger"
    settings = SimpleNamespace(quarantine=SimpleNamespace(table="db.q"))

    def __init__(self) -> None:
        self.open: list[str] = []

    def find_tables_that_routes_can_name(self) -> set[str]:
        return {"db.own", "db.foreign"}

    def open_each_existing_for_reading(self, names: list[str]) -> Any:
        for name in names:
            self.open.append(name)
            reader = SimpleNamespace(close=lambda name=name: self.open.remove(name))
            tagged = name == "db.own"
            yield name, TableAtRest(cast("Any", reader), cast("Any", None), lambda: 0, "u", tagged)


def test_the_reader_of_a_table_that_is_somebody_elses_is_closed() -> None:
    tables = Tables()
    answers = dict(open_tagged_and_known_tables(cast("Any", tables), ()))
    assert set(answers) == set(tables.open) == {"db.own"}
