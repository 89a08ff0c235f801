"""A registry: the one of HEADGATE_TEST_REGISTRY, else ours; and one of ours to ill-treat."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from integration.registry.server import RegistryServer


@pytest.fixture
def troubled() -> Iterator[RegistryServer]:
    """Ours, whatever the environment: it can be told to fail."""
    with RegistryServer() as server:
        yield server


@pytest.fixture
def registry_url() -> Iterator[str]:
    named = os.environ.get("HEADGATE_TEST_REGISTRY")
    if named:
        yield named
        return
    with RegistryServer() as server:
        yield server.url
