"""What a JVM of headgate's own has to have done before Hudi reads a file in it, and its heir's
data frames."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AFRESH = """
import sys
from headgate.tables.hudi.jvm import open_spark_context

jvm = open_spark_context({"spark.jars": sys.argv[1]}, {})._jvm
hudi, same = jvm.org.apache.hudi, jvm.java.lang.System.identityHashCode
schema = hudi.avro.model.HoodieMetadataRecord.getClassSchema()
parsed = hudi.common.schema.HoodieSchema.parse(schema.toString())
read = hudi.common.schema.HoodieSchemaCache.intern(parsed).toAvroSchema()
print(same(read) == same(hudi.avro.AvroSchemaCache.intern(schema)))
"""

CLOSED = """
import sys
from headgate.tables.hudi.jvm import open_spark_context

open_spark_context({"spark.jars": sys.argv[1]}, {})
context = open_spark_context({"spark.jars": sys.argv[1]}, {})
hudi, conf = context._jvm.org.apache.hudi, context._jsc.hadoopConfiguration()
conf.set("fs.inlinefs.impl", "org.apache.hudi.hadoop.fs.inline.InLineFileSystem")
file = hudi.storage.StoragePath(sys.argv[2])
block = hudi.storage.inline.InLineFSUtils.getInlineFilePath(file, "file", 1, 2)
path = context._jvm.org.apache.hadoop.fs.Path(block.toString())
stream = path.getFileSystem(conf).open(path)
print(chr(stream.read()))
stream.close()
try:
    print(chr(stream.read()))
except Exception as error:
    print(error.java_exception.getMessage())
"""

AGAIN = """
import os, signal, sys
from headgate.tables.hudi.jvm import has_jvm_ended, open_spark_context, session_of_context

for _ in range(2):
    context = open_spark_context({"spark.jars": sys.argv[1]}, {})
    session = session_of_context(context)
    print(session.read.schema("number long").json(sys.argv[2]).count())
    print(session.createDataFrame([], "number long").count())
    java = context._gateway.proc
    os.kill(java.pid, signal.SIGKILL)
    java.wait()
    assert has_jvm_ended(context)
"""


def test_a_metadata_table_that_was_read_first_can_be_written(bundle: Path) -> None:
    """Hudi 1.2.0 compares two caches' schemas by identity: which was first decides."""
    afresh = [sys.executable, "-c", AFRESH, str(bundle)]
    done = subprocess.run(afresh, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"], done.stderr[-2000:]


def test_a_block_of_a_log_file_that_is_closed_closes_the_file(bundle: Path, tmp_path: Path) -> None:
    """Hudi 1.2.0 leaves it open."""
    (tmp_path / "log").write_text("abcd")
    run = [sys.executable, "-c", CLOSED, str(bundle), str(tmp_path / "log")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["b", "Stream is closed!"], done.stderr[-2000:]


def test_data_frames_are_made_in_the_jvm_that_follows_one_that_was_killed(
    bundle: Path, tmp_path: Path
) -> None:
    """Upserts need them: PySpark asked the dead one for its session."""
    (tmp_path / "rows.json").write_text('{"number": 1}')
    again = [sys.executable, "-c", AGAIN, str(bundle), str(tmp_path)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "0"] * 2, done.stderr[-2000:]
