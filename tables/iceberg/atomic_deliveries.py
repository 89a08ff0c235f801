"""Delivers to several tables in one call of their catalog: readers see all of it, or none
(PENDING-5).

The call waits until the slowest table is ready for it; one that cannot be made ready is left out,
and the others are delivered together without it. One refused table must not block the others
(SUSPEND-1): then each is delivered by a call of its own, at once if nothing has landed, and in the
next round if that is not known. The answer to the call is not trusted for any table: each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableRequest, TableIdentifier

from headgate.control_protocol.errors import JointCommitsMissing, NotAtomic
from headgate.control_protocol.ports import CommitOutcome, Landed, Unknown
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_format import Calls, Delivery, DeliveryOutcome
from headgate.tables.iceberg.catalog_types import not_atomic_error
from headgate.tables.iceberg.prepared_commit import PreparedCommit
from headgate.tables.iceberg.table import IcebergTable

_REFUSED = (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    ValueError,  # pyiceberg's own, before anything is sent
)
_log = redacted_logger(__name__)
_ConcludeOne = Callable[[IcebergTable, PreparedCommit], CommitOutcome]


class AtomicDeliveries:
    """Delivers to the tables of one catalog together; its opener closes it.

    Raises ``NotAtomic`` for a catalog that has no such call.
    """

    def __init__(self, catalog: Catalog) -> None:
        # The module imports requests, which only joint deliveries need.
        from headgate.tables.iceberg.rest_catalog import JOINT_COMMIT, BoundedRestCatalog

        self._call = str(JOINT_COMMIT)
        if not isinstance(catalog, BoundedRestCatalog):
            raise not_atomic_error(catalog.name)
        if not catalog.may_support_multi_table_commits:
            raise NotAtomic(
                f"tables.atomic is set, and {self._call} is not among what the server of catalog "
                f"{catalog.name!r} says it has",
                "remove tables.atomic: tables are delivered to one by one then",
            )
        self._catalog = catalog
        self._apart = False

    def deliver(self, deliveries: Sequence[Delivery], calls: Calls) -> list[DeliveryOutcome]:
        """Return the outcome of each delivery, in order."""
        if self._apart:
            return self._deliver_separately(deliveries, calls)
        ready = calls.call_each(
            lambda each: calls.call_or_suspending_error_of_table(
                each.table_name, lambda: _prepare_or_deliver(each)
            ),
            deliveries,
        )
        pairs = [
            (delivery.table, call)
            for delivery, call in zip(deliveries, ready, strict=True)
            if isinstance(delivery.table, IcebergTable) and isinstance(call, PreparedCommit)
        ]
        conclude = (
            self._send_together_and_choose_conclusion(pairs)
            if len(pairs) > 1
            else IcebergTable.send_commit
        )

        def conclude_pair(
            pair: tuple[Delivery, PreparedCommit | DeliveryOutcome],
        ) -> DeliveryOutcome:
            delivery, call = pair
            if not isinstance(call, PreparedCommit):
                return call
            table = delivery.table
            assert isinstance(table, IcebergTable), "no other format prepares calls"
            return calls.call_or_suspending_error_of_table(
                delivery.table_name, lambda: conclude(table, call)
            )

        return calls.call_each(conclude_pair, list(zip(deliveries, ready, strict=True)))

    def _deliver_separately(
        self, deliveries: Sequence[Delivery], calls: Calls
    ) -> list[DeliveryOutcome]:
        """Deliver to each by itself, until every one has landed: then they are tried together
        again."""
        outcomes = calls.call_each(
            lambda each: calls.call_or_suspending_error_of_table(each.table_name, each.deliver),
            deliveries,
        )
        self._apart = not all(isinstance(outcome, Landed) for outcome in outcomes)
        return outcomes

    def _send_together_and_choose_conclusion(
        self, pairs: Sequence[tuple[IcebergTable, PreparedCommit]]
    ) -> _ConcludeOne:
        """Make the one call; return what then finds or sends each table's outcome."""
        changes = [_table_commit_request(call) for _, call in pairs]
        try:
            with ExitStack() as held:
                for table, _ in sorted(pairs, key=lambda pair: pair[1].proposal.base.table):
                    held.enter_context(table.table_change_lock)
                self._catalog.commit_tables(changes)
        except _REFUSED as error:
            _log.warning(
                "%d tables are delivered to one by one, not together: %s", len(pairs), error
            )
            return IcebergTable.send_commit
        except NotImplementedError as error:
            # What was written stays: it was sent, and the answer does not prove that nothing
            # landed.
            raise JointCommitsMissing(
                f"tables.atomic is set, and the server of catalog {self._catalog.name!r} has no "
                f"{self._call}: {error}",
                "remove tables.atomic: what is decided is delivered table by table then",
            ) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the call may have landed
            self._apart = True
            reason = f"several tables were delivered to together: {error!r}"
            return lambda _table, _call: Unknown(reason)
        return IcebergTable.find_outcome_after_joint_commit


def _prepare_or_deliver(delivery: Delivery) -> PreparedCommit | CommitOutcome:
    """Write what the call needs; a table of another format is delivered to by itself."""
    if isinstance(delivery.table, IcebergTable):
        return delivery.table.prepare_commit(delivery.attempt)
    return delivery.deliver()


def _table_commit_request(call: PreparedCommit) -> CommitTableRequest:
    *namespace, name = call.table.name()
    return CommitTableRequest(
        identifier=TableIdentifier(namespace=namespace, name=name),
        requirements=call.requirements,
        updates=call.updates,
    )
