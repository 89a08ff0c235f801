"""Registries: ours, Apicurio's real one (wide), or that of HEADGATE_TEST_REGISTRY; and one of ours
to ill-treat."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from integration.registry.server import RegistryServer
from support.apicurio import apicurio_registry


@pytest.fixture
def troubled() -> Iterator[RegistryServer]:
    """Ours, whatever the environment: it can be told to fail."""
    with RegistryServer() as server:
        yield server


@pytest.fixture(scope="session")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server; tests use subjects of their own."""
    with apicurio_registry(tmp_path_factory.mktemp("apicurio")) as url:
        yield url


@pytest.fixture(params=["ours", pytest.param("apicurio", marks=pytest.mark.wide)])
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    named = os.environ.get("HEADGATE_TEST_REGISTRY")
    if named:
        yield named
    elif request.param == "apicurio":
        yield f"{request.getfixturevalue('apicurio')}/apis/ccompat/v7"
    else:
        with RegistryServer() as server:
            yield server.url
