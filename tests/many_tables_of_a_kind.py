"""A sink file of three tables, for any kind but Iceberg, and its records."""

from __future__ import annotations

from headgate.testing.contract.world import BEGIN

ONE = """
[table]
type = "delta"
identifier = "db.orders"
location = "LAKE/orders"
create = true
columns = COLUMNS
[table.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[quarantine]
policy = "quarantine"
per_thousand_max = 1000
"""
MANY = """
[tables]
type = "delta"
ledger = "db.ledger"
valid_through_refresh_ms = 3600000
[tables.create]
schema = "declared"
location = "LAKE/{table}"
[[tables.route]]
topic = "^shop\\\\.(?P<name>.+)$"
to = "db.{name}"
[[tables.route]]
topic = "events"
field = "zone"
to = "db.zone_{field}"
[[tables.table]]
match = "db.(orders|returns|zone_a)"
columns = COLUMNS
[tables.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[quarantine]
policy = "quarantine"
table = "db.rejected"
per_thousand_max = 1000
"""
DECLARED = '[[tables.table]]\nmatch = "db.(orders|returns|zone_a)"\ncolumns = COLUMNS\n'
PLACES = ("topic", "partition", "offset")
EVERY = ("orders", "returns", "zone_a", "rejected")


CHANGES = (
    BEGIN.replace(', "events"', "")
    + """
[tables]
type = "delta"
ledger = "db.ledger"
[tables.create]
schema = "declared"
location = "LAKE/{table}"
[[tables.route]]
topic = "^shop\\\\.(?P<name>.+)$"
to = "db.{name}"
[[tables.table]]
match = "db.orders"
key = ["id"]
columns = [{ name = "id", type = "long", required = true }, { name = "zone", type = "string" }]
[[tables.table]]
match = "db.returns"
columns = COLUMNS
[tables.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[quarantine]
policy = "quarantine"
table = "db.rejected"
per_thousand_max = 1000
"""
)
"""Orders have a key, and returns are added to."""
