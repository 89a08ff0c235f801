"""Tells whether a connector is at work again, of which the sink has taken a table over (rule
TAKEOVER-14)."""

from __future__ import annotations

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConnectorReturned
from headgate.control_protocol.table_format import SupportsFencedConnector
from headgate.control_protocol.table_history import FencedConnector, TableReader
from headgate.kafka.cluster_queries import Cluster

_DELETE = "delete the connector; headgate takeover SINK --back lets it go on instead of the sink"


def fenced_connector_of(reader: TableReader) -> FencedConnector | None:
    """Return the connector that the sink keeps away from this table, if there is one."""
    return reader.fenced_connector() if isinstance(reader, SupportsFencedConnector) else None


def describe_commits_since_takeover(connector: FencedConnector) -> str:
    """Return what the connector has committed beside the sink; nothing as a rule."""
    if not connector.commits:
        return ""
    return (
        f"group {connector.group} has committed {count_of(len(connector.commits), 'snapshot')} "
        f"since the takeover, the newest is {connector.commits[0]}: their records are there twice"
    )


def require_connector_not_returned(cluster: Cluster, connector: FencedConnector) -> None:
    """Raise ``ConnectorReturned`` for a connector that commits, or has tasks; as ``group``."""
    if said := describe_commits_since_takeover(connector):
        raise ConnectorReturned(said, _DELETE)
    if members := cluster.describe_group(connector.group).members:
        raise ConnectorReturned(
            f"group {connector.group}, whose table this sink has taken over, has {len(members)} "
            f"members again: {', '.join(members)}",
            _DELETE,
        )
