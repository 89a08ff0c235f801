"""Checks that a Hive metastore compares and sets, without changing anything.

A commit is ``alter_table`` with the metadata's location. It states the location that it expects
(HIVE-26882: Hive 2.3.10, 4.0), and the metastore swaps only if that still holds; an older one
ignores expectations. Locks do not replace it: they time out, and their owner's ``alter_table`` may
come later all the same.
"""

from __future__ import annotations

import uuid
from typing import Any

from headgate.control_protocol.errors import HiveCannotSwap
from headgate.tables.iceberg.java_failures import failure_of
from headgate.tables.iceberg.jvm import Jvm

UNLOCKED = {"engine.hive.lock-enabled": "false"}
"""The property that makes every committer of a table state an expectation instead of locking.

One that locks overwrites what landed between its own check and its ``alter_table``.
"""

_EXPECTING = {"expected_parameter_key": "metadata_location", "expected_parameter_value": "headgate"}
_REFUSED = "The table has been modified"


def refuse_locks(identifier: str, properties: Any) -> None:
    """Raise ``HiveCannotSwap`` for a table whose committers lock instead."""
    for name, wanted in UNLOCKED.items():
        if str(properties.get(name)).lower() != wanted:
            raise HiveCannotSwap(
                f"table {identifier}: its property {name} is not {wanted}: a committer that "
                "locks can overwrite a commit of the sink's",
                f"stop its other writers, and set it: ALTER TABLE {identifier} SET TBLPROPERTIES "
                f"('{name}' = '{wanted}')",
            )


def refuse_ignorant(jvm: Jvm, conf: Any, database: str, name: str) -> None:
    """Raise ``HiveCannotSwap`` for a metastore (of ``conf``) that ignores an expectation.

    It is asked to add a partition key, which every metastore refuses for every table, while
    expecting a location that the table never had: one that knows expectations complains of that
    first. Raises what the metastore's client throws, if it answers neither.
    """
    java = jvm.gateway.jvm
    hive = java.org.apache.hadoop.hive
    client = hive.metastore.HiveMetaStoreClient(hive.conf.HiveConf(conf, conf.getClass()))
    try:
        table = client.getTable(database, name)
        key = hive.metastore.api.FieldSchema("headgate", "string", "")
        table.setPartitionKeys(jvm.java_list([key]))
        expecting = hive.metastore.api.EnvironmentContext(jvm.java_map(_EXPECTING))
        try:
            client.alter_table_with_environmentContext(database, name, table, expecting)
        except Exception as error:  # noqa: BLE001 - what Java threw is told from its text
            failure = failure_of(error)
            if _REFUSED in str(failure):
                return
            if "partition keys can not be changed" not in str(failure):
                raise failure from None
    finally:
        client.close()
    raise _ignorant(f"{database}.{name}")


def refuse_ignorant_of_views(jvm: Jvm, conf: Any, database: str) -> None:
    """Do as ``refuse_ignorant`` where there is no table yet, with a view that is removed again.

    A view has no files. It is created in the database, else in ``default``, which every metastore
    has.
    """
    java = jvm.gateway.jvm
    hive = java.org.apache.hadoop.hive
    client = hive.metastore.HiveMetaStoreClient(hive.conf.HiveConf(conf, conf.getClass()))
    name = f"headgate_check_{uuid.uuid4().hex[:12]}"
    try:
        known = [str(each) for each in client.getAllDatabases()]
        database = database if database in known else "default"
        client.createTable(_view(hive.metastore.api, jvm, database, name))
        try:
            expecting = hive.metastore.api.EnvironmentContext(jvm.java_map(_EXPECTING))
            view = client.getTable(database, name)
            try:
                client.alter_table_with_environmentContext(database, name, view, expecting)
            except Exception as error:  # noqa: BLE001 - what Java threw is told from its text
                failure = failure_of(error)
                if _REFUSED in str(failure):
                    return
                raise failure from None
        finally:
            client.dropTable(database, name)
    finally:
        client.close()
    raise _ignorant(f"{database}.{name}")


def _view(api: Any, jvm: Jvm, database: str, name: str) -> Any:
    store = api.StorageDescriptor()
    store.setCols(jvm.java_list([api.FieldSchema("headgate", "string", "")]))
    store.setSerdeInfo(api.SerDeInfo(name, "", jvm.java_map({})))
    view = api.Table()
    view.setDbName(database)
    view.setTableName(name)
    view.setSd(store)
    view.setPartitionKeys(jvm.java_list([]))
    view.setParameters(jvm.java_map({"metadata_location": name}))
    view.setTableType("VIRTUAL_VIEW")
    view.setViewOriginalText("SELECT 'headgate'")
    view.setViewExpandedText("SELECT 'headgate'")
    return view


def _ignorant(name: str) -> HiveCannotSwap:
    return HiveCannotSwap(
        f"the Hive metastore of table {name} does not compare and set: it ignored what a change "
        "expected",
        "use one that knows expectations (HIVE-26882: Hive 2.3.10, 4.0), or a REST, Glue or SQL "
        "catalog; docs/catalogs.md says more",
    )
