"""Puts what is known of a fleet into JSON: for scripts, whoever asks, by command or HTTP. Pure."""

from __future__ import annotations

from typing import Any

from headgate.runtime.fleet.fleet_view import SinkView, WorkerView


def sink_document(sink: SinkView) -> dict[str, Any]:
    """Return what is wanted of a sink beside what is seen of it."""
    spec, observed = sink.spec, sink.observed
    return {
        "sink": sink.key,
        "state": sink.state.value,
        "wanted": spec.state.value if spec else None,
        "worker": observed.worker if observed else sink.worker or None,
        "slot": sink.slot,
        "drift": sink.drift.value,
        "since_ms": sink.since_ms,
        "told_ms": sink.told_ms,
        "code": sink.error_code,
        "text": sink.error_text,
        "tries": observed.tries if observed else 0,
        "restarts": observed.restarts if observed else 0,
        "next_try_ms": sink.next_try_ms,
        "refused": sink.refused,
        "pid": observed.pid if observed else 0,
        "doing": observed.doing if observed else "",
        "leads": observed.leads if observed else None,
        "partitions": observed.partitions if observed else None,
        "lag_records": observed.lag_records if observed else None,
        "memory_bytes": observed.memory_bytes if observed else None,
        "cpu_permille": observed.cpu_permille if observed else None,
        "wanted_revision": spec.revision if spec else None,
        "revision": observed.revision if observed else "",
        "memory_mib": spec.memory_mib if spec else None,
        "number": spec.number if spec else None,
        "followed_number": observed.number if observed else None,
        "pinned": spec.pinned if spec else False,
        "actor": spec.actor if spec else "",
        "applied_ms": sink.applied_ms,
        "elsewhere": [
            {"worker": each.worker, "slot": each.slot, "state": each.state.value}
            for each in sink.elsewhere
        ],
    }


def worker_document(worker: WorkerView) -> dict[str, Any]:
    """Return what a worker told last."""
    observed = worker.observed
    return {
        "worker": observed.worker,
        "lost": worker.lost,
        "leaving": observed.leaving,
        "slots": list(observed.slots),
        "processes": observed.processes,
        "cores": observed.cores,
        "memory_bytes": observed.memory_bytes,
        "release": observed.release,
        "told_ms": worker.told_ms,
        "since_ms": worker.started_ms,
        "refused": observed.refused,
    }
