"""What ``IcebergFormat`` says when its catalog does not answer as it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError
from requests import ConnectionError as NotConnected
from sqlalchemy.exc import OperationalError
from support.local_catalog import LocalCatalog

from headgate.control_protocol.errors import HeadgateError, MissingRights, Unreachable
from headgate.control_protocol.table_format import TableSpec
from headgate.tables.iceberg.table_format import IcebergFormat

SPEC = TableSpec("db.trips", "")
CALLS: dict[str, Callable[[IcebergFormat], object]] = {
    "list_tables": lambda made: made.list_table_names(SPEC),
    "list_namespaces": lambda made: made.short_namespace_names_in(""),
    "table_exists": lambda made: made.exists(SPEC),
    "load_table": lambda made: made.make_branch(SPEC, "kept", 1, 1),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError("403"),
        ServiceUnavailableError("503"),
        NotConnected("refused"),
        OperationalError("select", {}, Exception("no server")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_catalog_raises_becomes_an_error_of_ours_that_names_what_was_asked(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(sqlite_catalog.catalog, call, fail)
    with pytest.raises(HeadgateError) as caught:
        CALLS[call](IcebergFormat(sqlite_catalog.catalog))
    refused = isinstance(error, ForbiddenError)
    assert (MissingRights.code in str(caught.value)) == refused
    assert type(error).__name__ in str(caught.value)
    if call.startswith("list") or not refused:
        assert isinstance(caught.value, Unreachable)  # one that is no participant's to stop for
