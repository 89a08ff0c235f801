"""A catalog call that is ready to be sent: by itself, or together with those of other tables."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from headgate.control_protocol.errors import TagsDropped
from headgate.control_protocol.ports import Unknown
from headgate.tables.iceberg.manifests import SnapshotFiles
from headgate.tables.iceberg.proposal import Proposal

OVERTAKEN = Unknown("it landed, and others went on from there")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The proposal to the catalog, and the files that were ``written`` for it."""

    table: Table
    proposal: Proposal
    written: SnapshotFiles
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    def under_the_tag(self, metadata: TableMetadata) -> bool:
        """Return whether the tag stands on this call's snapshot."""
        ref = metadata.refs.get(self.proposal.tag)
        return ref is not None and ref.snapshot_id == self.proposal.snapshot_id

    def landed(self, metadata: TableMetadata) -> bool:
        """Return whether its snapshot is there."""
        return metadata.snapshot_by_id(self.proposal.snapshot_id) is not None

    def refuse_tagless(self, metadata: TableMetadata) -> None:
        """Raise ``TagsDropped`` if a first claim's snapshot has landed, and its tag has not.

        A catalog that kept an earlier tag keeps this one: somebody else removed it just now.
        """
        tag = self.proposal.tag
        if self.landed(metadata) and self.proposal.base.tag is None and tag not in metadata.refs:
            raise TagsDropped(
                f"table {self.proposal.base.table}: its catalog took the first claim, and dropped "
                f"the tag {tag} that was in it",
                "this catalog keeps no tags, and nothing would fence a second coordinator: use one "
                "that does (docs/catalogs.md); the claim holds no rows",
            )
