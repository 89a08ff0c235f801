"""Who may import whom. The contracts are in ``pyproject.toml``; import-linter reads an install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from repository.tree import ROOT, imports, install, modules

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

# Pure: values in, values out. What they may use besides their like.
PURE_LIBRARY = {
    *("__future__", "base64", "binascii", "collections", "collections.abc", "dataclasses", "enum"),
    *("functools", "hashlib", "hmac", "itertools", "json", "math", "re", "types", "typing", "zlib"),
}
IMPURE = {
    "headgate.control_protocol": {
        *("codec", "listener", "parts", "redacted_log", "testing", "whose_thread", "wire"),
    },
    "headgate.coordinator": {"driver", "service"},
    "headgate.participant": {"driver", "job", "own_words", "task"},
}

# Who may import a foreign system; an entry that is a package speaks for its modules.
ADAPTERS = {
    "fastavro": {
        "headgate.control_protocol.codec",
        "headgate.data.writers.avro",
        "headgate.tables.iceberg.file_detail",
    },
    "confluent_kafka": {
        "headgate.kafka",
        "headgate.data.formats.schema_registry",
        "headgate.operations.demo.produce",
    },
    "opentelemetry": {"headgate.sink.telemetry.open_telemetry"},
    "prometheus_client": {"headgate.sink.telemetry.open_telemetry"},
    "pydantic": {
        "headgate.sink.load",
        "headgate.sink.properties",
        "headgate.sink.sections",
        "headgate.sink.table_settings",
        "headgate.sink.tables_settings",
    },
    "uvicorn": {"headgate.operations.face.server"},
    "h11": {"headgate.operations.face.server"},
    "deltalake": {"headgate.tables.delta"},
    "pyiceberg": {
        "headgate.tables",
        "headgate.data.writers",
        "headgate.operations.asked_tables",
        "headgate.operations.catalog_rights",
        "headgate.operations.check_table",
        "headgate.operations.delete_rows",
        "headgate.operations.leaving",
        "headgate.operations.maintain",
        "headgate.operations.paid_tables",
        "headgate.operations.rehearsal",
        "headgate.operations.rehearsed_tables",
        "headgate.operations.check_keys",
        "headgate.operations.replay_tables",
        "headgate.operations.reread_tables",
        "headgate.operations.rollback",
        "headgate.operations.rollback_tables",
        "headgate.operations.table_access",
        "headgate.sink.catalogs",
        "headgate.sink.declaration",
        "headgate.sink.iceberg_format",
        "headgate.sink.maintenance",
        "headgate.sink.planning",
        "headgate.sink.preconditions",
        "headgate.sink.starting",
    },
    "pyspark": {
        "headgate.data.spark",
        "headgate.tables.hudi.jvm",
        "headgate.tables.hudi.keyed_java",
    },
    "sqlglot": {"headgate.data.transform.select_text"},
    "botocore": {"headgate.tables.iceberg.catalog", "headgate.tables.stores.s3_store"},
    "pyarrow": {
        "headgate.data",
        "headgate.kafka.fetch",
        "headgate.native",
        "headgate.operations.audit_records",
        "headgate.operations.fold",
        "headgate.operations.rehearsal",
        "headgate.sink.maintenance",
        "headgate.sink.preconditions",
        "headgate.tables",
    },
}


def is_pure(module: str) -> bool:
    package, _, name = module.removeprefix("headgate.").partition(".")
    impure = IMPURE.get(f"headgate.{package}")
    return impure is not None and name.split(".")[0] not in impure


def test_layers(tmp_path: Path) -> None:
    install(tmp_path / "installed")
    command = [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    linted = subprocess.run(
        command, cwd=tmp_path / "installed", capture_output=True, text=True, timeout=120
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_a_pure_module_uses_no_clock_no_chance_and_no_world() -> None:
    foreign = {
        f"{module} imports {name}"
        for module, path in modules().items()
        if is_pure(module)
        for name in imports(path) - PURE_LIBRARY
        if not is_pure(name)
    }
    assert foreign == set(), "name it in IMPURE if it is an adapter, else keep it pure"


def test_what_is_named_impure_is_there() -> None:
    named = {f"{package}.{name}" for package, names in IMPURE.items() for name in names}
    assert named - modules().keys() == set()


def test_a_foreign_system_is_known_to_its_adapters_only() -> None:
    for system, named in ADAPTERS.items():
        users = {
            module
            for module, path in modules().items()
            if any(name.split(".")[0] == system for name in imports(path))
        }
        unnamed = {user for user in users if not any(belongs(user, entry) for entry in named)}
        unused = {entry for entry in named if not any(belongs(user, entry) for user in users)}
        assert (system, unnamed, unused) == (system, set(), set())


def belongs(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
