"""The broker in a container, for machines where a Docker engine answers."""

from __future__ import annotations

import gc
import warnings
from contextlib import ExitStack

from headgate.operations.local_kafka.broker import KAFKA_VERSION, find_free_port, node_properties


def docker_broker(stack: ExitStack) -> str | None:
    """The address of a container that lives as long as the stack; ``None`` where none can run."""
    with warnings.catch_warnings():
        # The client forgets its socket when nobody answers; that is no finding about our code.
        warnings.simplefilter("ignore")
        try:
            return _start(stack) if _engine_answers() else None
        finally:
            gc.collect()


def _engine_answers() -> bool:
    import docker

    try:
        client = docker.from_env(timeout=2)
        client.ping()
        client.close()
    except docker.errors.DockerException:
        return False
    return True


def _start(stack: ExitStack) -> str | None:
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = find_free_port()
    address = f"{DockerClient().host()}:{port}"
    container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}").with_bind_ports(port, port)
    properties = node_properties(address, controller_port=port + 1)
    properties["listeners"] = f"PLAINTEXT://:{port},CONTROLLER://127.0.0.1:{port + 1}"
    for key, value in properties.items():
        container.with_env("KAFKA_" + key.upper().replace(".", "_"), str(value))
    container.waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    try:
        stack.enter_context(container)
    except (DockerException, RuntimeError, OSError):  # no image, no rights, not up in time
        return None
    return address
