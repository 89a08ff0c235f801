"""A sink file of many tables: what it says, what cannot be, and tables that topics make."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from integration.iceberg.rest_server import LyingProxy
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.schema import Schema
from support.local_catalog import LocalCatalog
from support.small_rest_catalog import SmallRestCatalog

from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.load import parse
from headgate.config.multi_table_settings import CreateFrom, OneTableSettings
from headgate.config.routed_tables import resolve_column_choice
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, NotAtomic, RouteUnfit, TablesUnfit
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.control_protocol.ports import CommitAttempt, Landed, TableView, TopicState
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_format import Use
from headgate.control_protocol.testing.contract.world import record
from headgate.coordinator.settings import DeliveryLinger, RollbackPolicy
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.operations.control.resolve_stop import resolve_stop_of_sink
from headgate.operations.many_tables.list import list_tables
from headgate.runtime.assembly import build_coordinator_identity
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.routed_table_creation import AGAIN_S, TableMaker
from headgate.runtime.sink_tables import SinkTables
from headgate.runtime.write_planning import record_columns_by_part, shaping_of
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

FILE = """
name = "shop"
[source]
topics = ["shop.orders", "^shop\\\\..+"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[tables]
ledger = "db.ledger"
[[tables.route]]
topic = "^shop\\\\.(?P<name>.+)$"
to = "db.{name}"
[tables.create]
schema = "declared"
partition_by = ["day(at|ts)"]
[[tables.table]]
match = "db.(orders|a_b)"
columns = [{ name = "id", type = "long" }, { name = "ts", type = "timestamptz" }]
[[tables.table]]
match = "db.bare"
columns = [{ name = "id", type = "long" }]
partition_by = ["id"]
[spark]
writer = "in-process"
"""
ONE_TABLE = FILE.split("[tables]", 1)[0] + '[table]\nidentifier = "db.t"\n'


def refusal(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    return caught.value


def test_the_ledger_leads_and_the_quarantine_takes_what_is_unmatched() -> None:
    settings = parse(FILE)
    assert settings.table.identifier == "db.ledger"
    assert settings.quarantine.keeps_rejected_records
    assert settings.quarantine.table == "db.ledger_quarantine"
    assert replace(settings) == settings
    skipping = parse(FILE.replace("[tables]\n", '[tables]\nunmatched = "skip"\n'))
    assert not skipping.quarantine.keeps_rejected_records
    assert (settings.bad_record_limits.may_skip, skipping.bad_record_limits.may_skip) == (
        False,
        True,
    )
    assert settings.tables.unmatched is Disposal.QUARANTINE


def test_participants_agree_on_the_routes_and_a_sink_of_one_table_says_nothing() -> None:
    one, other = parse(FILE), parse(FILE.replace('to = "db.{name}"', 'to = "db.x_{name}"'))
    differing = {
        name
        for name, said in settings_to_agree_on(one).items()
        if settings_to_agree_on(other)[name] != said
    }
    assert differing == {"tables.route"}
    single = settings_to_agree_on(parse(ONE_TABLE))
    assert not any(said for name, said in single.items() if name.startswith("tables."))


def placed(location: str, to: str = 'to = "db.{name}"') -> str:
    text = FILE.replace('to = "db.{name}"', to)
    return text.replace("[tables.create]\n", f'[tables.create]\nlocation = "{location}"\n')


def located(*names: str) -> str:
    return FILE + "".join(
        f"[[tables.table]]\nmatch = '{name}'\nlocation = 's3://lake/t'\n" for name in names
    )


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (FILE + '[table]\nidentifier = "db.t"\n', TablesUnfit, "both table and tables.ledger"),
        (FILE.replace('ledger = "db.ledger"', "max = 3"), ConfigurationError, "table is missing"),
        (ONE_TABLE + "[tables]\nmax = 3\n", TablesUnfit, "tables.ledger is missing"),
        (FILE.split("[[tables.route]]", maxsplit=1)[0], TablesUnfit, "tables.route is missing"),
        (FILE.replace('to = "db.{name}"', 'to = "db.{other}"'), RouteUnfit, "'other'"),
        (FILE.replace('to = "db.{name}"', 'to = "db.Ledger"'), RouteUnfit, "sink's own tables"),
        (FILE.replace('to = "db', 'record = "a.B"\nto = "db'), RouteUnfit, "record names"),
        (FILE + '[transform]\nsql = "SELECT * FROM records"\n', ConfigurationError, "transform"),
        (FILE + '[coordinator]\non_rollback = "follow-table"\n', TablesUnfit, "go back"),
        (FILE.replace('schema = "declared"', ""), TablesUnfit, "no table is created"),
        (
            FILE.replace('schema = "declared"\npartition_by = ["day(at|ts)"]', "").replace(
                'partition_by = ["id"]', ""
            ),
            TablesUnfit,
            "'db.(orders|a_b)' declares columns, but tables.create.schema is off",
        ),
        (FILE.replace('type = "long" }]', 'type = "lang" }]'), ConfigurationError, "lang"),
        (placed("s3://lake/all"), TablesUnfit, "write {table} into it"),
        (placed("s3://lake/{table}", 'to = "{name}.t"'), TablesUnfit, "write {namespace} into it"),
        (
            FILE.replace('(orders|a_b)"\n', '(orders|a_b)"\nlocation = "s3://lake/{namespace}"\n'),
            TablesUnfit,
            "tables.table 'db.(orders|a_b)': location = 's3://lake/{namespace}' is the same",
        ),
        (located("db.a", "db.b"), TablesUnfit, "location = 's3://lake/t' is that of tables.table"),
        (
            located("db.a") + '[quarantine]\nlocation = "s3://lake/t"\n',
            TablesUnfit,
            "location = 's3://lake/t' is that of quarantine",
        ),
        (
            FILE + '[tables.record_columns]\ntopic = "id"\n',
            ConfigurationError,
            "tables.record_columns.topic = 'id' would overwrite the data of the column 'id' in tab",
        ),
        (
            FILE + '[tables.record_columns]\ntopic = "a"\nkey = "a"\n',
            ConfigurationError,
            "tables.record_columns has a column without a name, or names one twice",
        ),
        (
            FILE.replace('"ts", type', '"id", type').replace("(at|ts)", "(at|id)"),
            ConfigurationError,
            "names one twice",
        ),
        (
            FILE.replace("}, {", '}, { name = "ID", type = "long" }, {'),
            ConfigurationError,
            "differ only in case",
        ),
        (
            FILE.replace('"timestamptz" }', '"timestamptz", from_record = true }'),
            ConfigurationError,
            "'ts' is from_record, but tables.record_columns does not name it",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    text: str, kind: type[ConfigurationError], why: str
) -> None:
    error = refusal(text)
    assert type(error) is kind
    assert why in f"{error.message} {error.hint}"


def test_tables_of_one_namespace_or_one_table_need_no_more_in_their_places() -> None:
    """Two in one place had drafts of one name: one was delivered to what the other was pending."""
    assert parse(placed("s3://lake/{table}")).tables
    one = placed("s3://lake/all", 'to = "db.orders"')
    assert parse(one).tables
    own = FILE.replace('(orders|a_b)"\n', 'orders"\nlocation = "s3://lake/orders"\n')
    assert parse(own).tables


BEHIND = FILE.replace('writer = "in-process"', 'writer = "spark"').replace(
    "[[tables.route]]\n", '[[tables.route]]\nfield = "_table"\n'
)
TRANSFORM = """[transform]
sql = "SELECT id, kind AS _table FROM records"
columns = [{ name = "id", type = "long" }, { name = "kind", type = "string" }]
"""


def test_a_distribution_of_spark_goes_with_routes() -> None:
    for mode in ("hash", "range"):
        spark = FILE.replace('writer = "in-process"', f'distribution = "{mode}"')
        assert shaping_of(parse(spark)).distribution == mode
        assert (
            shaping_of(parse(spark)).with_resolved_distribution("db.ledger", {}).distribution
            == mode
        )


def test_routes_look_at_what_a_transform_says() -> None:
    settings = parse(BEHIND + TRANSFORM + '[tables.record_columns]\nkey = "k"\n')
    plan = shaping_of(settings).transform
    assert plan is not None
    decoded = Schema.model_validate_json(plan.schema_json)
    assert [(f.name, str(f.field_type)) for f in decoded.fields] == [
        ("id", "long"),
        ("kind", "string"),
        ("k", "binary"),
    ]
    assert record_columns_by_part(settings) == {"key": "k"}
    assert record_columns_by_part(parse(FILE + '[tables.record_columns]\nkey = "k"\n')) == {}


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (BEHIND + TRANSFORM.split("columns", 1)[0], TablesUnfit, "transform.columns are missing"),
        (BEHIND.replace('"_table"', '"kind"') + TRANSFORM, RouteUnfit, "after a transform"),
        (BEHIND.replace('field = "_table"', 'header = "h"') + TRANSFORM, RouteUnfit, "'h'"),
        (
            BEHIND.replace('"timestamptz" }', '"timestamptz", unit = "s" }') + TRANSFORM,
            TablesUnfit,
            "move the rule",
        ),
    ],
)
def test_what_no_route_can_see_behind_a_transform_is_refused(
    text: str, kind: type[ConfigurationError], why: str
) -> None:
    error = refusal(text)
    assert type(error) is kind
    assert why in f"{error.message} {error.hint}"


def test_a_ledger_is_not_let_back_by_hand_either() -> None:
    for choice in ("HG-201=follow-table", "HG-202=restart", "HG-203=follow-table"):
        with pytest.raises(TablesUnfit, match="go back"):
            resolve_stop_of_sink(parse(FILE), [choice])
    assert parse(FILE).coordinator.on_rollback is RollbackPolicy.FAIL


def test_what_is_for_one_table_says_so() -> None:
    with pytest.raises(ConfigurationError, match="fills one table"):
        list_tables(parse(ONE_TABLE))


@pytest.mark.parametrize(
    ("schema", "made"),
    [("declared", {"orders", "bare"}), ("infer", {"orders", "bare", "other"}), ("off", set())],
)
def test_the_settings_say_which_missing_tables_may_be_made(schema: str, made: set[str]) -> None:
    settings = parse(FILE).tables
    create = replace(settings.create, schema=CreateFrom(schema))
    declared = settings.table if schema != "off" else ()
    tables = replace(
        settings, create=create, table=(OneTableSettings(match="db.keyed", key=("id",)), *declared)
    )
    names = ("orders", "bare", "keyed", "other")
    assert {name for name in names if tables.routing.may_create(f"db.{name}")} == made


def test_the_first_column_that_there_is_partitions() -> None:
    assert resolve_column_choice("day(at|ts)", {"ts"}) == "day(ts)"
    assert resolve_column_choice("bucket(16, a|b)", {"a", "b"}) == "bucket(16, a)"
    assert resolve_column_choice("zone", set()) == "zone"
    with pytest.raises(ConfigurationError, match="no column at or ts"):
        resolve_column_choice("day(at|ts)", {"id"})


# ------------------------------------------------------------------------------ tables are made


def topics(*names: str) -> dict[str, TopicState]:
    return {name: TopicState(TopicId(name), {}) for name in names}


def maker(sqlite_catalog: LocalCatalog, settings: SinkSettings | None = None) -> TableMaker:
    return TableMaker(
        settings or parse(FILE),
        SinkTables.from_open_catalog(settings or parse(FILE), sqlite_catalog.catalog),
        lambda: 0.0,
    )


def test_a_declared_table_is_made_for_its_topic(sqlite_catalog: LocalCatalog) -> None:
    maker(sqlite_catalog).try_create_declared_tables(
        topics("shop.orders", "shop.a-b", "shop.undeclared")
    )
    table = sqlite_catalog.catalog.load_table("db.orders")
    assert [field.name for field in table.schema().fields] == ["id", "ts"]
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert sqlite_catalog.catalog.load_table("db.a_b").properties[RAW_NAME_PROPERTY] == "db.a-b"
    assert not sqlite_catalog.catalog.table_exists("db.undeclared")
    assert sqlite_catalog.catalog.table_exists("db.bare"), "declared by its full name"


def test_a_table_that_cannot_be_made_is_tried_again_and_holds_up_no_other(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, now_s = sqlite_catalog.catalog.create_table, [0.0]

    def refusing(name: str, *given: Any, **more: Any) -> Any:
        if name == "db.bare":
            raise ForbiddenError("not you")
        return create(name, *given, **more)

    monkeypatch.setattr(sqlite_catalog.catalog, "create_table", refusing)
    making = TableMaker(
        parse(FILE),
        SinkTables.from_open_catalog(parse(FILE), sqlite_catalog.catalog),
        lambda: now_s[0],
    )
    making.try_create_declared_tables(topics("shop.orders"))
    assert sqlite_catalog.catalog.table_exists("db.orders")
    assert not sqlite_catalog.catalog.table_exists("db.bare")
    monkeypatch.undo()
    making.try_create_declared_tables(topics("shop.orders"))
    assert not sqlite_catalog.catalog.table_exists("db.bare"), "not at once"
    now_s[0] += AGAIN_S
    making.try_create_declared_tables(topics("shop.orders"))
    assert sqlite_catalog.catalog.table_exists("db.bare")


def test_a_table_without_its_partitioning_is_refused() -> None:
    error = refusal(FILE.replace('partition_by = ["id"]\n', ""))
    assert "'db.bare': partition 'day(at|ts)': there is no column at or ts" in error.message


def test_racing_creators_make_one_table(sqlite_catalog: LocalCatalog) -> None:
    """CREATE-4: who comes second finds it, and continues with it as it is."""
    others = [load_catalog(sqlite_catalog.name, sqlite_catalog.properties) for _ in range(3)]
    settings = parse(FILE)
    makers = [
        TableMaker(settings, SinkTables.from_open_catalog(settings, one), lambda: 0.0)
        for one in others
    ]
    threads = [
        threading.Thread(target=one.try_create_declared_tables, args=[topics("shop.orders")])
        for one in makers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sqlite_catalog.catalog.table_exists("db.orders")
    maker(sqlite_catalog).try_create_declared_tables(topics("shop.orders"))
    for other in others:
        other.close()


def test_only_so_many_tables_are_made_in_all(sqlite_catalog: LocalCatalog) -> None:
    """ROUTE-4: topics are made by people, so nothing bounds how many tables of them a minute
    brings."""
    text = FILE.replace("db.(orders|a_b)", "db.t.*").replace(
        'ledger = "db.ledger"', 'ledger = "db.ledger"\nnew_per_minute_max = 2\nmax = 4'
    )
    now_s = [0.0]
    making = TableMaker(
        parse(text),
        SinkTables.from_open_catalog(parse(text), sqlite_catalog.catalog),
        lambda: now_s[0],
    )
    wild = topics(*(f"shop.t{number}" for number in range(5)))
    for _ in range(3):
        making.try_create_declared_tables(wild)
        made = sum(sqlite_catalog.catalog.table_exists(f"db.t{number}") for number in range(5))
        assert made == 3, "with db.bare, which is declared by its name"
        now_s[0] += 61


def test_linger_1_sections_say_how_long_pending_commits_gather_and_nobody_has_to_agree() -> None:
    slow = parse(
        FILE.replace('match = "db.bare"', 'match = "db.bare"\ndelivery_linger_ms = 300000')
    )
    assert [pace.every_ms for pace in slow.tables.delivery_lingers] == [0, 300_000]
    assert settings_to_agree_on(slow) == settings_to_agree_on(parse(FILE))


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace('match = "db.bare"', 'match = "db.bare"\ndelivery_linger_ms = 5400001'),
        FILE.replace('match = "db.bare"', 'match = "db.bare"\ndelivery_linger_ms = -1'),
        FILE.replace("[tables]\n", "[tables]\nvalid_through_refresh_ms = -1\n"),
    ],
)
def test_times_that_cannot_be_are_refused(text: str) -> None:
    assert "_ms" in refusal(text).message


REST = f'{FILE}[catalog.properties]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n'
ATOMIC = "[tables]\natomic = true\n"


def test_tables_may_be_delivered_together_over_rest_and_nobody_has_to_agree() -> None:
    together = parse(REST.replace("[tables]\n", ATOMIC))
    assert together.tables.atomic
    assert settings_to_agree_on(together) == settings_to_agree_on(parse(REST))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (REST.replace("rest", "sql").replace("http://127.0.0.1:1", "sqlite:////c.db"), NotAtomic),
        (REST.replace('type = "rest"', 'type = "glue"'), NotAtomic),
        (
            f'{REST}[catalog]\nbackend = "java"\n'.replace("in-process", "spark"),
            NotAtomic,
        ),
        (
            REST.replace('match = "db.bare"', 'match = "db.bare"\ndelivery_linger_ms = 1000'),
            TablesUnfit,
        ),
    ],
)
def test_elsewhere_that_is_refused_by_name(text: str, kind: type) -> None:
    assert isinstance(refusal(text.replace("[tables]\n", ATOMIC)), kind)


def test_secondaries_of_such_a_sink_are_delivered_in_one_call(tmp_path: Path) -> None:
    with (
        SmallRestCatalog(tmp_path, {"warehouse": f"file://{tmp_path}/warehouse"}) as server,
        LyingProxy(server.server_port) as proxy,
        ExitStack() as stack,
    ):
        text = REST.replace("http://127.0.0.1:1", proxy.uri).replace("[tables]\n", ATOMIC)
        settings = parse(text)
        catalog = stack.enter_context(open_catalog(settings))
        names = ("db.orders", "db.bare")
        for name in names:
            create_table_if_missing(catalog, name, TableDeclaration({"id": "long"}))
        tables = SinkTables.from_open_catalog(settings, catalog)
        opened = partial(tables.open_table, use=Use.SECONDARY)
        secondaries = SecondaryTables(opened, together=AtomicDeliveries(catalog))
        stack.callback(secondaries.close)
        views = secondaries.try_read_views(names)
        delivery = replace(record(1, 0, sink=settings.name), primary="uuid-lead")
        deliveries = [CommitAttempt(cast("TableView", views[name]), delivery) for name in names]
        outcomes = secondaries.deliver(deliveries, 60_000)
        assert [type(outcome) for outcome in outcomes.values()] == [Landed, Landed]
        assert proxy.commits == 1


def test_a_start_refuses_a_server_that_has_no_such_call(tmp_path: Path) -> None:
    with SmallRestCatalog(tmp_path, {"warehouse": f"file://{tmp_path}"}) as server:
        server.endpoints = ["GET /v1/{prefix}/functions"]
        text = REST.replace("http://127.0.0.1:1", server.uri)
        with open_catalog(parse(text)) as catalog:
            SinkTables.from_open_catalog(parse(text), catalog).atomic_commits()
            with pytest.raises(NotAtomic, match="transactions/commit"):
                SinkTables.from_open_catalog(
                    parse(text.replace("[tables]\n", ATOMIC)), catalog
                ).atomic_commits()


def test_the_coordinator_knows_paces_and_how_often_idle_tables_are_delivered() -> None:
    slow = FILE.replace('match = "db.bare"', 'match = "db.bare"\ndelivery_linger_ms = 300000')
    text = slow.replace("[tables]\n", "[tables]\nvalid_through_refresh_ms = 600000\n")
    known = build_coordinator_identity(parse(text), Sender("member", "life"))
    assert known.paces == (DeliveryLinger("db.(orders|a_b)", 0), DeliveryLinger("db.bare", 300_000))
    assert known.refresh_ms == 600_000
