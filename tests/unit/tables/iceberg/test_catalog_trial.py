"""What a trial of a catalog says when it does not know what became of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
)
from pyiceberg.table import CommitTableRequest
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.tables.iceberg.catalog_trial import CatalogTrial
from headgate.tables.iceberg.rest_catalog import BoundedRestCatalog


def test_a_table_that_may_have_been_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = local_catalog(tmp_path).catalog
    make = catalog.create_table

    def made_unheard(*of: Any, **more: Any) -> None:
        make(*of, **more)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(catalog, "create_table", made_unheard)
    trial = CatalogTrial(catalog, "db", "scratch")
    with pytest.raises(Unreachable, match="may have been made all the same") as found:
        trial.create_scratch_tables()
    assert "look for db.scratch, and drop it" in str(found.value)
    assert catalog.table_exists("db.scratch")
    catalog.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[CatalogTrial, Mock]]:
    """A trial whose tables are made, and its catalog: a REST one over a local one."""
    local = local_catalog(tmp_path).catalog
    catalog = Mock(spec=BoundedRestCatalog, wraps=local, properties={})
    catalog.may_support_multi_table_commits = True
    trial = CatalogTrial(catalog, "db", "scratch")
    trial.create_scratch_tables()
    yield trial, catalog
    local.close()


def joint_commits_of(catalog: Any, refusal: Exception) -> Callable[..., None]:
    def commit(changes: Sequence[CommitTableRequest]) -> None:
        tables = [catalog.load_table(("db", change.identifier.name)) for change in changes]
        for table, change in zip(tables, changes, strict=True):
            (required,) = change.requirements
            if required.uuid != table.metadata.table_uuid:
                raise refusal
        for table, change in zip(tables, changes, strict=True):
            catalog.commit_table(table, (), change.updates)

    return commit


@pytest.mark.parametrize("refusal", [CommitFailedException("409"), BadRequestError("400")])
def test_a_joint_commit_may_be_refused_as_a_conflict_or_as_a_bad_request(
    made: tuple[CatalogTrial, Mock], refusal: Exception
) -> None:
    trial, catalog = made
    catalog.commit_tables = joint_commits_of(catalog, refusal)
    assert trial.try_joint_commit()


@pytest.mark.parametrize(
    "refusal", [CommitStateUnknownException("502"), ServiceUnavailableError("503")]
)
def test_a_joint_commit_without_an_answer_leaves_the_other_answers(
    made: tuple[CatalogTrial, Mock], refusal: Exception
) -> None:
    """They were lost with a traceback."""
    trial, catalog = made
    catalog.commit_tables = joint_commits_of(catalog, refusal)
    with pytest.raises(Unreachable, match=r"50[23]"):
        trial.try_joint_commit()


def test_who_may_not_drop_hears_of_both_tables(made: tuple[CatalogTrial, Mock]) -> None:
    trial, catalog = made
    catalog.purge_table.side_effect = catalog.drop_table.side_effect = ForbiddenError("not you")
    with pytest.raises(MissingRights, match=r"db\.scratch and db\.scratch_other.*not you"):
        trial.drop_tables_finding_unpurged_locations()
    catalog.drop_table.side_effect = None
    assert len(trial.drop_tables_finding_unpurged_locations()) == 2
    assert trial.made == []
