"""A sink file with ``table.key``: what goes with it, what is refused by name (KEY-12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from headgate.config.cdc_settings import ChangesSettings, OnPartitionsAdded
from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.maintenance_settings import MaintenanceSettings
from headgate.config.multi_table_settings import (
    CreateFrom,
    CreateSettings,
    OneTableSettings,
    RouteSettings,
    TablesSettings,
)
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.setting_types import Properties
from headgate.config.shape_settings import ShapeSettings
from headgate.config.sink_sections import (
    FormatSettings,
    SourceSettings,
    SparkSettings,
    TransformSettings,
    WriterKind,
)
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration_of
from headgate.config.table_format_registry import primary_table_spec
from headgate.config.table_settings import (
    ColumnSettings,
    RecordColumns,
    SchemaSettings,
    TableSettings,
)
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, KeyUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import CoordinatorSettings, OffsetPolicy, RollbackPolicy
from headgate.data_plane.cdc.policy import Envelope, OnDelete, Tombstones
from headgate.participant.settings import Distribution, Incompatible, UnknownFields
from headgate.spark.query_batch_commits import require_settings_fit_query

EVOLVE, LEAVE_OUT = UnknownFields.EVOLVE, Incompatible.IGNORE
DEBEZIUM = ChangesSettings(envelope=Envelope.DEBEZIUM)
KEPT = ChangesSettings(tombstones=Tombstones.FAIL)
MARKING = ChangesSettings(on_delete=OnDelete.MARK)
HISTORY = ChangesSettings(history=True)
TIMED = RecordColumns(partition="kafka_partition", offset="kafka_offset", timestamp="valid_from")
SKIP, HASH = Disposal.SKIP, Distribution.HASH

COLUMNS = (
    ColumnSettings(name="id", type="long", required=True),
    ColumnSettings(name="zone", type="string", required=True),
    ColumnSettings(name="fare", type="double", required=True),
    ColumnSettings(name="tip", type="long"),
    ColumnSettings(name="who", type="struct<name: string>", required=True),
)
OPTIONAL = tuple(replace(each, required=each.name == "id") for each in COLUMNS)
DELETED_AT_NUMBER = ColumnSettings(name="deleted_at", type="long")
DELETED_AT_READ = ColumnSettings(name="deleted_at", type="timestamptz", path="gone.at")
DAY = ColumnSettings(name="day", type="int", required=True, default=1)
PLACES = RecordColumns(partition="kafka_partition", offset="kafka_offset")


def settings(
    *key: str, topics: tuple[str, ...] = ("orders",), places: RecordColumns = PLACES, **more: Any
) -> SinkSettings:
    own = {name: more.pop(name) for name in ("shared_with", "schema", "columns") if name in more}
    return SinkSettings(
        name=SinkName("orders"),
        source=SourceSettings(topics=topics),
        kafka=Properties({"bootstrap.servers": "localhost:1"}),
        table=TableSettings(
            identifier="lake.orders", key=key, record_columns=places, **{"columns": COLUMNS, **own}
        ),
        **more,
    )


def values_of(name: str, key_type: str = "") -> FormatSettings:
    options = {"registry.url": "http://localhost:1"} if "registry" in name else {}
    return FormatSettings(type=name, options=Properties(options), key_type=key_type)


def test_the_keys_columns_become_the_identifier_fields() -> None:
    keyed = settings("zone", "id", format=FormatSettings(key_type="json"))
    schema = declaration_of(keyed.table).schema()
    assert schema.identifier_field_names() == {"id", "zone"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: settings("ide"), "no column 'ide'.*do you mean 'id'"),
        (lambda: settings("fare"), "of type double"),
        (lambda: settings("tip"), "not required"),
        (lambda: settings("who"), "of type struct"),
        (lambda: settings("id", "id"), "named twice"),
        (lambda: settings("id", places=RecordColumns(offset="kafka_offset")), "which record a row"),
        (lambda: settings("id", topics=("a", "b")), "several topics"),
        (lambda: settings("id", topics=("a", "^b.*")), "several topics"),
        (
            lambda: settings(
                "id", coordinator=CoordinatorSettings(on_rollback=RollbackPolicy.KEEP_OFFSETS)
            ),
            "keep-offsets",
        ),
        (lambda: settings("id", transform=TransformSettings(sql="SELECT 1")), "a transform"),
        (
            lambda: settings(
                "id",
                transform=TransformSettings(python="a:b"),
                spark=SparkSettings(writer=WriterKind.IN_PROCESS),
            ),
            "a transform",
        ),
        (lambda: settings("id", shared_with=("other",)), "shared_with"),
        (
            lambda: settings(
                "id",
                schema=SchemaSettings(unknown_fields=EVOLVE),
                changes=ChangesSettings(envelope=Envelope.DMS),
            ),
            "unknown_fields.*dms.*one of two places",
        ),
        (lambda: settings("id", schema=SchemaSettings(incompatible=LEAVE_OUT)), "incompatible"),
        (lambda: settings("id", quarantine=QuarantineSettings(tombstones=SKIP)), "tombstones"),
        (lambda: settings("id", spark=SparkSettings(distribution=HASH)), "distribution"),
        (lambda: settings("id", "zone"), "how message keys are read"),
        (lambda: settings("id", columns=COLUMNS, changes=MARKING), "'zone' is required"),
        (
            lambda: settings("id", columns=(*OPTIONAL, DELETED_AT_NUMBER), changes=MARKING),
            "is int64, and deletes cannot mark",
        ),
        (
            lambda: settings("id", columns=(*OPTIONAL, DELETED_AT_READ), changes=MARKING),
            "marks rows that were deleted, and has a rule",
        ),
        (
            lambda: settings(
                "id", columns=OPTIONAL, changes=MARKING, shape=ShapeSettings(where="id > 1")
            ),
            "together with shape.where",
        ),
        (
            lambda: settings("id", changes=ChangesSettings(deleted_at="gone_at")),
            "deletes mark no rows",
        ),
        (
            lambda: settings("zone", format=values_of("connect-json")),
            "keys of connect-json records",
        ),
        (
            lambda: settings("zone", format=values_of("avro-registry")),
            "keys of avro-registry records",
        ),
        (
            lambda: settings("zone", changes=DEBEZIUM, format=values_of("protobuf-registry")),
            "keys of protobuf-registry records",
        ),
        (lambda: settings("day", columns=(DAY,)), "'day' of the key has a default"),
        (
            lambda: settings("id", changes=DEBEZIUM, format=FormatSettings(type="csv")),
            "csv have no",
        ),
        (lambda: settings("id", changes=ChangesSettings(index_memory_bytes=0)), "below 1"),
        (lambda: settings("id", changes=ChangesSettings(growth_ms=0)), "growth_ms is below 1"),
        (lambda: settings(changes=ChangesSettings(envelope=Envelope.DMS)), "table.key is not"),
    ],
)
def test_key_1_key_12_what_does_not_go_with_a_key_is_refused(
    make: Callable[[], SinkSettings], why: str
) -> None:
    with pytest.raises(HeadgateError, match=why) as refused:
        make()
    assert refused.value.code == KeyUnfit.code


EXPIRING = MaintenanceSettings(rows_after_ms=30 * 24 * 3_600_000, rows_by="valid_from")
ANEW = CoordinatorSettings(on_topic_recreated=OffsetPolicy.EARLIEST)
VALID_FROM_NUMBER = ColumnSettings(name="valid_from", type="long", from_record=True)


def history(*key: str, **more: Any) -> SinkSettings:
    return settings(*key, **{"columns": OPTIONAL, "places": TIMED, "changes": HISTORY, **more})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: history("id", places=PLACES), "no column takes the records' time"),
        (lambda: history("id", columns=(*OPTIONAL, VALID_FROM_NUMBER)), "must be a timestamptz"),
        (lambda: history("id", columns=COLUMNS), "changes.history could not keep the row"),
        (lambda: history("id", shape=ShapeSettings(where="id > 1")), "history is set together"),
        (history, "changes.history is set, but table.key is not"),
        (lambda: history("id", maintenance=EXPIRING), "a delete's row could go before"),
        (lambda: history("id", coordinator=ANEW), "offsets begin anew"),
        (
            lambda: history(
                "id",
                changes=replace(HISTORY, on_partitions_added=OnPartitionsAdded.WAIT),
            ),
            "no row tells which partition is younger",
        ),
        (lambda: routed(KEYED, changes=HISTORY), "no column takes the records' time"),
    ],
)
def test_key_14_key_16_what_would_take_versions_or_their_order_is_refused(
    make: Callable[[], SinkSettings], why: str
) -> None:
    with pytest.raises(HeadgateError, match=why) as refused:
        make()
    assert refused.value.code == KeyUnfit.code


def test_key_14_a_history_appends_and_its_columns_identify_no_row() -> None:
    sink = history("id")
    spec = primary_table_spec(sink)
    assert (spec.key, sink.replaces_primary_rows, sink.has_keyed_table) == (None, False, True)
    assert [column.name for column in sink.table.columns][-1] == "deleted_at"
    assert primary_table_spec(settings("id")).key is not None
    many = routed(replace(KEYED, columns=OPTIONAL), places=ALL_TIMED, changes=HISTORY)
    keys = KeysByRoute.from_settings(many)
    assert not keys.replaces_rows_of("lake.orders")
    assert (keys.may_feed_keyed_table("shop.orders"), keys.may_feed_keyed_table("shop.logs")) == (
        True,
        False,
    )
    assert KeysByRoute.from_settings(sink).may_feed_keyed_table(
        "orders"
    )  # added partitions stop it (KEY-16)
    assert not KeysByRoute.from_settings(settings()).may_feed_keyed_table("orders")


@pytest.mark.parametrize(("changes", "named"), [(HISTORY, "history"), (MARKING, "on_delete")])
def test_key_14_a_query_that_writes_makes_its_deletes_itself(
    changes: ChangesSettings, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"changes\.{named} cannot be used"):
        require_settings_fit_query(history("id", changes=changes))


def test_config_1_participants_agree_whether_there_is_a_history() -> None:
    kinds = [
        settings_to_agree_on(history("id", changes=changes))
        for changes in (HISTORY, replace(HISTORY, deleted_at="gone_at"), MARKING, ChangesSettings())
    ]
    assert all(one["changes"] != other["changes"] for one, other in combinations(kinds, 2))
    same = settings_to_agree_on(history("id", changes=replace(HISTORY, on_delete=OnDelete.MARK)))
    assert same == kinds[0]  # a history implies it


ALL_PLACES = replace(PLACES, topic="kafka_topic")
ALL_TIMED = replace(ALL_PLACES, timestamp="valid_from")
KEYED = OneTableSettings(match="lake.(orders|users)", key=("id",), columns=COLUMNS)
PLAIN = OneTableSettings(match="lake.logs")
BY_NAME = RouteSettings(topic=r"^shop\.(?P<name>.+)$", to="lake.{name}")


def routed(
    *sections: OneTableSettings,
    routes: tuple[RouteSettings, ...] = (BY_NAME,),
    places: RecordColumns = ALL_PLACES,
    **more: Any,
) -> SinkSettings:
    of_tables = {name: more.pop(name) for name in ("shared_with", "schema") if name in more}
    of_tables.setdefault("create", CreateSettings(schema=CreateFrom.DECLARED))
    tables = TablesSettings(
        ledger="lake.ledger", route=routes, table=sections, record_columns=places, **of_tables
    )
    return SinkSettings(
        name=SinkName("shop"),
        source=SourceSettings(topics=("shop.orders", r"^shop\..+")),
        kafka=Properties({"bootstrap.servers": "localhost:1"}),
        tables=tables,
        **more,
    )


def test_key_1_tables_of_routes_have_keys_by_their_names() -> None:
    sink = routed(KEYED, PLAIN, quarantine=QuarantineSettings(tombstones=SKIP))
    routing = sink.tables.routing
    assert routing.key_of("lake.orders") == routing.key_of("lake.users") == ("id",)
    assert routing.key_of("lake.logs") == routing.key_of("lake.orders_2") == ()
    keys = KeysByRoute(routing)
    assert (keys.replaces_rows_of("lake.users"), keys.replaces_rows_of("lake.logs")) == (
        True,
        False,
    )
    assert (keys.may_feed_keyed_table("shop.orders"), keys.may_feed_keyed_table("shop.logs")) == (
        True,
        False,
    )
    assert not keys.may_feed_keyed_table("another")
    assert KeysByRoute(
        routed(KEYED, routes=(by("t"),), changes=SKIPPED).tables.routing
    ).may_feed_keyed_table("t")
    assert routed(PLAIN).tables.routing.keys == ()
    assert settings_to_agree_on(sink) != settings_to_agree_on(routed(replace(KEYED, key=()), PLAIN))
    assert not settings_to_agree_on(routed(PLAIN))["changes"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: routed(replace(KEYED, key=("tip",))), "'lake.*not required"),
        (lambda: routed(KEYED, places=PLACES), "several topics may"),
        (lambda: routed(KEYED, places=RecordColumns(topic="t")), "which record a row comes from"),
        (lambda: routed(KEYED, shared_with=("other",)), "shared_with"),
        (
            lambda: routed(
                KEYED,
                schema=SchemaSettings(unknown_fields=EVOLVE),
                changes=ChangesSettings(envelope=Envelope.DMS),
            ),
            r"tables.table 'lake.\(orders\|users\)': .*unknown_fields.*one of two places",
        ),
        (lambda: routed(replace(KEYED, incompatible="ignore")), "incompatible"),
        (lambda: routed(KEYED, spark=SparkSettings(distribution=HASH)), "distribution"),
        (
            lambda: routed(
                KEYED, coordinator=CoordinatorSettings(on_rollback=RollbackPolicy.KEEP_OFFSETS)
            ),
            "keep-offsets",
        ),
        (lambda: routed(replace(KEYED, key=("id", "zone"))), "how message keys are read"),
        (lambda: routed(KEYED, changes=DEBEZIUM, format=FormatSettings(type="csv")), "csv have no"),
        (lambda: routed(PLAIN, changes=DEBEZIUM), "table.key is not"),
    ],
)
def test_key_1_key_12_what_does_not_go_with_a_key_of_a_routed_table_is_refused(
    make: Callable[[], SinkSettings], why: str
) -> None:
    with pytest.raises(HeadgateError, match=why) as refused:
        make()
    assert refused.value.code == KeyUnfit.code


def by(field: str, **more: Any) -> RouteSettings:
    return RouteSettings(value_field=field, **{"to": "lake.{field}", **more})


SKIPPED = ChangesSettings(tombstones=Tombstones.SKIP)


def enveloped(envelope: Envelope) -> ChangesSettings:
    return replace(SKIPPED, envelope=envelope)


def routes_are_taken(*routes: RouteSettings, changes: ChangesSettings = SKIPPED) -> str:
    """What is refused, if anything is."""
    wanted = "avro-registry" if any(route.record for route in routes) else "json"
    try:
        form = values_of(wanted, key_type="string")
        routed(KEYED, PLAIN, routes=routes, changes=changes, format=form)
    except KeyUnfit as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "routes",
    [
        (by("t"), BY_NAME),
        (BY_NAME, by("t")),
        (by("t", to="lake.logs"), BY_NAME),
        (by("t", to="lake.logs", topic="shop.orders"), BY_NAME),
        (RouteSettings(record="^(?P<name>.+)$", to="lake.{name}"),),
    ],
)
def test_key_2_what_deletes_has_a_value_where_values_tell_of_which_table_it_is(
    routes: tuple[RouteSettings, ...],
) -> None:
    refused = routes_are_taken(*routes, changes=ChangesSettings())
    assert "looks at the value of records that may be of a table with a key" in refused
    assert 'set changes.tombstones = "skip"' in refused
    for tombstones in (Tombstones.SKIP, Tombstones.FAIL):
        assert not routes_are_taken(*routes, changes=ChangesSettings(tombstones=tombstones))


@pytest.mark.parametrize(
    "routes",
    [
        (BY_NAME, by("t", to="lake.event_{field}")),
        (by("t", to="lake.event_{field}", topic="events"), BY_NAME),
        (RouteSettings(header="t", to="lake.{header}"),),
    ],
)
def test_key_2_routes_that_no_key_depends_on_may_look_at_anything(
    routes: tuple[RouteSettings, ...],
) -> None:
    assert not routes_are_taken(*routes, changes=ChangesSettings())


@pytest.mark.parametrize(
    ("envelope", "field", "instead"),
    [
        (Envelope.PLAIN, "op", ""),
        (Envelope.DEBEZIUM, "source.table", ""),
        (Envelope.DEBEZIUM, "after.kind", "source.table"),
        (Envelope.DEBEZIUM, "before.kind", "source.table"),
        (Envelope.DEBEZIUM, "op", "source.table"),
        (Envelope.FLATTENED, "__table", ""),
        (Envelope.FLATTENED, "__op", "__table"),
        (Envelope.FLATTENED, "__deleted", "__table"),
        (Envelope.FLATTENED, "kind", "__table"),
        (Envelope.DMS, "metadata.table-name", ""),
        (Envelope.DMS, "__table", ""),
        (Envelope.DMS, "metadata.operation", "metadata.table-name"),
        (Envelope.DMS, "data.kind", "metadata.table-name"),
        (Envelope.DMS, "Op", "metadata.table-name"),
    ],
)
def test_key_2_a_route_looks_at_what_each_kind_of_event_has(
    envelope: Envelope, field: str, instead: str
) -> None:
    refused = routes_are_taken(by(field), changes=enveloped(envelope))
    assert (instead in refused) if instead else not refused


def test_tables_beside_a_keyed_one_may_take_up_columns() -> None:
    own = replace(KEYED, unknown_fields="ignore")
    assert routed(own, PLAIN, schema=SchemaSettings(unknown_fields=EVOLVE)).has_keyed_table


def test_a_keyed_one_may_too() -> None:
    assert routed(KEYED, PLAIN, schema=SchemaSettings(unknown_fields=EVOLVE)).has_keyed_table
    assert routed(replace(KEYED, unknown_fields="evolve"), PLAIN).has_keyed_table


def test_only_changes_of_routed_tables_may_be_passed_over() -> None:
    assert not routed(KEYED).bad_record_limits.may_skip
    assert routed(KEYED, changes=DEBEZIUM).bad_record_limits.may_skip


def test_what_says_how_keys_of_messages_are_read() -> None:
    settings("id")
    settings("id", "zone", format=FormatSettings(key_type="json"))
    settings("id", "zone", changes=DEBEZIUM)
    settings("id", "zone", changes=KEPT)
    settings("zone", format=values_of("connect-json", key_type="string"))
    settings("zone", format=values_of("avro-registry"), changes=KEPT)
    settings("zone", changes=DEBEZIUM, format=values_of("connect-json"))
    zone = (replace(COLUMNS[1], from_record=True),)
    places = replace(PLACES, key="zone")
    settings("zone", columns=zone, places=places, format=values_of("connect-json"))


def test_only_records_that_change_rows_may_be_passed_over() -> None:
    assert not settings("id").bad_record_limits.may_skip
    for changes in (
        ChangesSettings(tombstones=Tombstones.SKIP),
        DEBEZIUM,
    ):
        assert settings("id", changes=changes).bad_record_limits.may_skip


def test_key_13_the_column_of_the_marks_is_declared_with_the_others_and_members_agree_on_it() -> (
    None
):
    marking = settings("id", columns=OPTIONAL, changes=MARKING)
    assert marking.table.columns[-1] == ColumnSettings(name="deleted_at", type="timestamptz")
    named = replace(MARKING, deleted_at="gone_at")
    own = ColumnSettings(name="gone_at", type="timestamp", doc="ours")
    declared = settings("id", columns=(own, *OPTIONAL), changes=named)
    assert declared.table.columns == (own, *OPTIONAL)
    assert settings("id", columns=(), changes=MARKING).table.columns == ()
    assert "mark in deleted_at" in settings_to_agree_on(marking)["changes"]
    assert "mark in gone_at" in settings_to_agree_on(declared)["changes"]
    assert "mark" not in settings_to_agree_on(settings("id"))["changes"]
