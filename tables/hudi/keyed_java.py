"""Hudi's upserts of staged files: one write of this process's Spark, committed as any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.record import KeyCounts
from headgate.tables.hudi.columns import spark_columns
from headgate.tables.hudi.fold import Fold, coordinates
from headgate.tables.hudi.java import HudiJava
from headgate.tables.hudi.keys import GENERATOR, index_of, key_settings
from headgate.tables.hudi.places import HudiPlace


class HudiKeyedJava(HudiJava):
    """A table with a key; ``upsert`` or ``nothing`` comes between ``register`` and ``commit``."""

    def __init__(self, place: HudiPlace, schema: str) -> None:
        super().__init__(place, schema)
        self._statuses: list[Any] = []

    def register(self, meta: Any, instant: str) -> None:
        """Request the commit: an upsert begins it by itself."""
        self.go_on(instant)
        self._request(meta, instant)

    def nothing(self, meta: Any, instant: str) -> None:
        """Begin a commit that brings no rows."""
        self._statuses = []
        self._prepare(instant)
        self._set_off(meta, instant)

    def upsert(self, meta: Any, instant: str, files: Sequence[WrittenFile]) -> KeyCounts:
        """Write what the files change into the table's folder, below a requested instant.

        Raises ``KeyInTwoPartitions``, ``TableChanged``, and what Java raises.
        """
        fold = self._fold(files)
        try:
            counts = fold.counts(sum(file.records for file in files))
            if counts.inserted + counts.updated + counts.deleted:
                self._statuses = self._written(meta, instant, fold.changed())
            else:
                self.nothing(meta, instant)
        finally:
            fold.close()
        return counts

    def brought(self) -> list[Path]:
        """The files that the upsert has written."""
        return [self._place.folder / str(each.getPath()) for each in self._statistics_of(())]

    # ------------------------------------------------------------------------------------ of Java

    def _fold(self, files: Sequence[WrittenFile]) -> Fold:
        key = self._place.key
        assert key is not None, "chosen for it"
        columns = self._place.config().columns
        gone = spark_columns([*(columns[name] for name in key.key), *coordinates(key)])
        return Fold(
            key,
            self._read(files, FileKind.ROWS, spark_columns(columns.fields)),
            self._read(files, FileKind.KEYS, gone),
            self.rows(),
        )

    def _read(self, files: Sequence[WrittenFile], kind: FileKind, columns: str) -> Any:
        paths = [file.path for file in files if file.kind is kind]
        if not paths:
            return self._session.createDataFrame([], columns)
        return self._session.read.schema(columns).parquet(*paths)

    def _written(self, meta: Any, instant: str, rows: Any) -> list[Any]:
        """Return Hudi's status of each file."""
        writer, hudi = self._writer(), self._hudi
        schema = hudi.common.schema.HoodieSchema.parse(self._schema)
        upsert = hudi.common.model.WriteOperationType.UPSERT
        told = self._java.util.HashMap()
        for key, value in self._settings().items():
            told.put(key, value)
        options = self._spark._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(told)  # noqa: SLF001
        arguments = getattr(hudi, "HoodieCreateRecordUtils$createHoodieRecordRddArgs")(
            rows._jdf,  # noqa: SLF001
            writer.getConfig(),
            options,
            self._place.table,
            "hoodie",
            schema,
            schema,
            upsert,
            instant,
            False,  # noqa: FBT003 - Java has no names
            False,  # noqa: FBT003
            False,  # noqa: FBT003
            meta.getTableConfig(),
        )
        making = getattr(getattr(hudi, "HoodieCreateRecordUtils$"), "MODULE$")
        writer.setOperationType(upsert)
        found = list(writer.upsert(making.createHoodieRecordRdd(arguments), instant).collect())
        for status in found:
            if status.hasErrors():
                why = status.getGlobalError() or status.getErrors()
                raise Unreachable(f"Hudi table {self._place.name} takes no row: {why.toString()}")
        return found

    def _operation(self, files: Sequence[WrittenFile]) -> Any:
        if not files:
            return super()._operation(files)
        return self._hudi.common.model.WriteOperationType.UPSERT

    def _statistics_of(self, files: Sequence[WrittenFile]) -> list[Any]:  # noqa: ARG002
        return [status.getStat() for status in self._statuses]

    def _settings(self) -> Mapping[str, str]:
        config, key, given = self._place.config(), self._place.key, self._place.settings
        assert key is not None, "chosen for it"
        index = index_of(self._place.name, given)
        by = config.dressing.partition_by
        generator = {GENERATOR: f"org.apache.hudi.keygen.{config.generator}"}
        return {**given, **key_settings(key, index, config.keys, by), **generator}
