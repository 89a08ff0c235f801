"""The checker of real tables: every file that is referred to is there, no foreign ref is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.keyed_real import KeyedRealCatalog
from simulation.real_catalog import RealCatalog, real_catalog
from support.verdicts import Kind, Violation

if TYPE_CHECKING:
    from simulation.world import World


class Whole:
    def __init__(self, catalog: RealCatalog) -> None:
        self._catalog = catalog
        self._seen: tuple[int, int] | None = None

    def look(self) -> None:
        catalog = self._catalog
        now = (id(catalog.metadata), catalog.storage.deleted)
        if now == self._seen:
            return
        self._seen = now
        missing = sorted(path for path in catalog.referred() if not catalog.storage.holds(path))
        if missing:
            raise Violation(Kind.LOSS, f"{catalog.table} refers to what is gone: {missing[:3]}")
        for name, files in catalog.foreign.items():
            ref = catalog.metadata.refs.get(name)
            snapshot = catalog.metadata.snapshot_by_id(ref.snapshot_id) if ref else None
            if ref and (snapshot is None or set(catalog.live(snapshot)) != files):
                raise Violation(Kind.LOSS, f"{catalog.table}: {name} has other files than it had")

    def end(self) -> None:
        """When all is calm again.

        Who died while it removed snapshots could not look after them; nor could who slept until
        others' commits had pushed the proof out of the metadata log, or an orphan clean-up had met
        files to which nothing referred meanwhile; nor who did not reach the catalog when it ended.
        """
        catalog = self._catalog
        gone = catalog.foreign.keys() - catalog.metadata.refs.keys() - catalog.untold
        gone = {name for name in gone if not catalog.foreign[name] & catalog.cleaned}
        by = catalog.taken_along
        gone -= {
            n for n in gone if by[n] in catalog.out_of_reach and getattr(by[n], "closed", False)
        }
        lost = sorted(name for name in gone if getattr(by[name], "is_accountable", True))
        if lost:
            raise Violation(Kind.LOSS, f"{self._catalog.table} lost the refs of others: {lost}")


def wholes(world: World) -> list[Whole]:
    """The checkers of a real world, whose quarantine is made real here too."""
    if world.quarantine:
        for name in world.quarantine.catalogs:
            real = real_catalog(world.seed, world.catalog.storage, name)
            if world.keys and name in world.keys.tables:
                beside, serves = world.catalog.storage, world.seed % 2 == 0
                real = KeyedRealCatalog(world.keys, name, serves=serves, beside=beside)
            world.quarantine.catalogs[name] = real
    return [Whole(catalog) for catalog in world.catalogs]
