"""Tells the coordinator which of the routed tables have a key (rule U1)."""

from __future__ import annotations

from typing import Protocol


class RoutedKeys(Protocol):
    """By names; the answers never change during a coordinator's life."""

    def of_table(self, table: str) -> bool:
        """Return whether records replace and delete rows of this table."""

    def of_topic(self, topic: str) -> bool:
        """Return whether records of this topic may go to such a table."""


class _None:
    """For a sink whose routes name no table with a key."""

    def of_table(self, table: str) -> bool:  # noqa: ARG002 - the port's
        return False

    def of_topic(self, topic: str) -> bool:  # noqa: ARG002 - the port's
        return False


NO_KEYS: RoutedKeys = _None()
