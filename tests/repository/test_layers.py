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
    *(
        "functools",
        "hashlib",
        "hmac",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "types",
        "typing",
    ),
    "zlib",
}
IMPURE = {
    "headgate.control_protocol": {
        *(
            "event_reader",
            "machine_driver",
            "message_encoding",
            "multipart_status",
            "redacting_loggers",
        ),
        *("call_progress", "current_sink", "secret_references"),
        "testing",
    },
    "headgate.coordinator": {"driver", "service"},
    "headgate.participant": {"driver"},
}

# Who may import a foreign system; an entry that is a package speaks for its modules.
ADAPTERS = {
    "fastavro": {
        "headgate.control_protocol.message_encoding",
        "headgate.data_plane.files.avro",
        "headgate.operations.kafka_connect.events",
        "headgate.tables.iceberg.data_file",
    },
    "confluent_kafka": {
        "headgate.kafka",
        "headgate.operations.demo.producer",
        "headgate.operations.kafka_connect.control_topic",
    },
    "opentelemetry": {
        "headgate.runtime.telemetry.opentelemetry",
    },
    "prometheus_client": {
        "headgate.runtime.telemetry.opentelemetry",
    },
    "pydantic": {
        "headgate.config.load",
        "headgate.config.multi_table_settings",
        "headgate.config.sink_sections",
        "headgate.config.setting_types",
        "headgate.config.table_settings",
        "headgate.config.worker_settings",
    },
    "uvicorn": {
        "headgate.operations.http.server",
    },
    "h11": {
        "headgate.operations.http.server",
    },
    "deltalake": {
        "headgate.tables.delta",
    },
    "pyiceberg": {
        "headgate.config.table_declaration",
        "headgate.data_plane.batch",
        "headgate.data_plane.files",
        "headgate.data_plane.quarantine",
        "headgate.data_plane.write",
        "headgate.operations.check.table",
        "headgate.operations.check.keys_and_transform",
        "headgate.runtime.catalogs",
        "headgate.runtime.sink_tables",
        "headgate.runtime.maintenance",
        "headgate.runtime.start_checks",
        "headgate.tables",
    },
    "pyspark": {
        "headgate.data_plane.spark",
        "headgate.spark.batches",
        "headgate.tables.hudi.jvm",
        "headgate.tables.hudi.upsert_table",
    },
    "sqlglot": {
        "headgate.data_plane.transform.select_parser",
    },
    "botocore": {
        "headgate.data_plane.formats.registry.glue_client",
        "headgate.kafka.token_providers",
        "headgate.tables.iceberg.catalog",
        "headgate.tables.storage.s3_client",
    },
    "pyarrow": {
        "headgate.data_plane",
        "headgate.kafka.record_fetch",
        "headgate.native",
        "headgate.operations.audit",
        "headgate.operations.dry_run",
        "headgate.runtime.maintenance",
        "headgate.runtime.start_checks",
        "headgate.data_plane.spark.query_rows",
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


def test_one_function_tells_a_process_and_its_commands_the_time_of_day() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for room in ("runtime", "operations")
        for path in (ROOT / room).rglob("*.py")
        if "time.time_ns() //" in path.read_text()
    ]
    assert found == ["runtime/wall_clock.py"]


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
        unnamed = {user for user in users if not any(is_of_token(user, entry) for entry in named)}
        unused = {entry for entry in named if not any(is_of_token(user, entry) for user in users)}
        assert (system, unnamed, unused) == (system, set(), set())


def is_of_token(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
