"""What a JVM of headgate's own has to have done before Hudi reads a file in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AFRESH = """
import sys
from headgate.tables.hudi.jvm import open_spark

jvm = open_spark({"spark.jars": sys.argv[1]}, {})._jvm
hudi, same = jvm.org.apache.hudi, jvm.java.lang.System.identityHashCode
schema = hudi.avro.model.HoodieMetadataRecord.getClassSchema()
parsed = hudi.common.schema.HoodieSchema.parse(schema.toString())
read = hudi.common.schema.HoodieSchemaCache.intern(parsed).toAvroSchema()
print(same(read) == same(hudi.avro.AvroSchemaCache.intern(schema)))
"""


def test_point_2_a_metadata_table_that_was_read_first_can_be_written(bundle: Path) -> None:
    """Hudi 1.2.0 compares two caches' schemas by identity: which was first decides."""
    afresh = [sys.executable, "-c", AFRESH, str(bundle)]
    done = subprocess.run(afresh, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"], done.stderr[-2000:]
