"""Translates the Kafka client's keys of a connector and its worker: Java's into librdkafka's."""

from __future__ import annotations

import re
from typing import NamedTuple

from headgate.kafka import client_settings
from headgate.operations.kafka_connect.translation_report import Report

_SOURCES = ("consumer.override.", "iceberg.kafka.")
"""Prefixes of the connector's own keys, the first of which counts."""

_OF_WORKER = ("bootstrap.servers", "security.protocol", "sasl.", "ssl.", "client.dns.lookup")
"""What a worker's file says of the cluster; its other keys are the worker's own."""

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "ssl.key.password": "ssl.key.password",
}
_SENTINELS = {
    "ssl.endpoint.identification.algorithm": {"": "none"},
}
_JKS = "librdkafka reads PEM and PKCS #12, not a Java key store: export it"
_READ = "records are read in batches of offsets (participant.batch_records_max), not by polls"
_PRODUCER = "of the connector's own producer; control events of headgate need no transactions"
_IN_JAVA = "a class in Java; [kafka.auth] says where tokens come from"
_OTHER = {
    **dict.fromkeys(("max.poll.records", "default.api.timeout.ms"), _READ),
    **dict.fromkeys(
        (
            "transaction.timeout.ms",
            "batch.size",
            "linger.ms",
            "buffer.memory",
            "delivery.timeout.ms",
        ),
        _PRODUCER,
    ),
    "acks": "control events count only when all replicas have them",
    "sasl.login.callback.handler.class": _IN_JAVA,
    "sasl.client.callback.handler.class": _IN_JAVA,
    "interceptor.classes": "a class in Java; headgate has metrics of its own",
}
_LOGIN = re.compile(r"([\w.]+)\s+(?:required|requisite|sufficient|optional)\b(.*)", re.DOTALL)
_OPTION = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")
_START = {"earliest": "earliest", "latest": "latest"}


def fill_kafka(report: Report) -> None:
    """Fill ``[kafka]``, ``[kafka.auth]`` and ``source.start_at``."""
    keys = _collect_client_keys(report)
    client = report.ensure_section("kafka")
    _fill_servers(report, keys)
    _fill_start_at(report, keys)
    _fill_authentication(report, keys)
    _fill_key_and_trust_stores(report, keys)
    for name, written in keys.items():
        if written.key not in report.fates:
            _fill_client_key(report, client, name, written)


class _ClientKey(NamedTuple):
    """A key of a client as somebody wrote it, and the value that counts."""

    key: str
    value: str


def _collect_client_keys(report: Report) -> dict[str, _ClientKey]:
    """Return the reading client's keys by Kafka's names, and note overridden ones as dropped."""
    found = {
        key: _ClientKey(key, value)
        for key, value in report.worker.items()
        if key.startswith(_OF_WORKER)
    }
    for key, value in report.worker.items():
        inner = key.removeprefix("consumer.")
        if inner != key:
            if before := found.get(inner):
                report.note_dropped((before.key,), f"{key} says it for the reading client")
            found[inner] = _ClientKey(key, value)
    for prefix in reversed(_SOURCES):
        for key, value in report.keys.items():
            if key.startswith(prefix):
                inner = key.removeprefix(prefix)
                before = found.get(inner)
                if before and before.key in report.keys:
                    report.note_dropped((before.key,), f"{key} says it for the reading client")
                found[inner] = _ClientKey(key, value)
    return found


def _fill_servers(report: Report, keys: dict[str, _ClientKey]) -> None:
    client = report.ensure_section("kafka")
    if "bootstrap.servers" in keys:
        key, value = keys["bootstrap.servers"]
        client["bootstrap.servers"] = report.to_sink_file_value(key, "KAFKA", value)
        report.note_kept(key, 'kafka."bootstrap.servers"')
        return
    client["bootstrap.servers"] = report.add_variable_reference(
        "bootstrap.servers", "KAFKA_BOOTSTRAP_SERVERS"
    )
    report.note_to_add_by_hand(
        "bootstrap.servers",
        "stands in the worker's file: give --worker FILE, or set KAFKA_BOOTSTRAP_SERVERS",
    )


def _fill_start_at(report: Report, keys: dict[str, _ClientKey]) -> None:
    """Fill ``source.start_at``: Connect begins at the earliest record unless its consumer says."""
    key, value = keys.get("auto.offset.reset", ("", "earliest"))
    source = report.ensure_section("source")
    source["start_at"] = _START.get(value, "earliest")
    if key and value in _START:
        report.note_kept(
            key, "source.start_at, of the very first start; later ones follow the table"
        )
    elif key:
        report.note_to_add_by_hand(key, f"{value!r}: source.start_at is earliest, latest or a time")


def _fill_authentication(report: Report, keys: dict[str, _ClientKey]) -> None:
    mechanism_key, mechanism = keys.get("sasl.mechanism", ("", ""))
    jaas_key, jaas = keys.get("sasl.jaas.config", ("", ""))
    login = _LOGIN.search(jaas)
    module = login[1].rpartition(".")[2] if login else ""
    options = {k: a or b or c for k, a, b, c in _OPTION.findall(login[2])} if login else {}
    if mechanism == "AWS_MSK_IAM" or module == "IAMLoginModule":
        _fill_msk_auth(report, (mechanism_key, jaas_key), options)
    elif mechanism == "OAUTHBEARER" or module == "OAuthBearerLoginModule":
        _fill_oidc_auth(report, keys, options)
    elif mechanism == "GSSAPI" or module == "Krb5LoginModule":
        service_key, service = keys.get("sasl.kerberos.service.name", ("", "kafka"))
        report.ensure_section("kafka", "auth").update(type="kerberos", service_name=service)
        for key in filter(None, (mechanism_key, service_key)):
            report.note_kept(key, "kafka.auth, type kerberos")
        if jaas_key:
            report.note_to_add_by_hand(
                jaas_key, "no keytab here: the host keeps a ticket (kinit -R, k5start)"
            )
    elif jaas_key and module in ("PlainLoginModule", "ScramLoginModule"):
        _fill_password_auth(report, jaas_key, options)
    elif jaas_key and re.fullmatch(r"\$\{[^}]*\}", jaas):
        client = report.ensure_section("kafka")
        for name in ("username", "password"):
            client[f"sasl.{name}"] = report.add_variable_reference(jaas_key, f"KAFKA_{name}")
        report.note_to_add_by_hand(
            jaas_key, "a reference as a whole: set KAFKA_USERNAME and KAFKA_PASSWORD"
        )
    elif jaas_key:
        report.note_refused(jaas_key, f"the login module {module or '(none)'} has no counterpart")


def _fill_password_auth(report: Report, key: str, options: dict[str, str]) -> None:
    client = report.ensure_section("kafka")
    user = options.get("username", "")
    given = "${" not in user
    client["sasl.username"] = (
        user if given else report.add_variable_reference(key, "KAFKA_USERNAME")
    )
    client["sasl.password"] = report.add_variable_reference(key, "KAFKA_PASSWORD")
    report.note_kept(key, 'kafka."sasl.username" and ."sasl.password"')


def _fill_msk_auth(report: Report, keys: tuple[str, ...], options: dict[str, str]) -> None:
    auth = report.ensure_section("kafka", "auth")
    auth["type"] = "aws-msk-iam"
    servers = report.ensure_section("kafka")["bootstrap.servers"]
    if ".amazonaws.com" not in servers:
        region = report.connector_value("iceberg.catalog.client.region")
        auth["region"] = region or report.add_variable_reference("sasl.mechanism", "AWS_REGION")
    if role := options.get("awsRoleArn"):
        auth["role_arn"] = role
    for key in filter(None, keys):
        report.note_kept(key, "kafka.auth, type aws-msk-iam")


def _fill_oidc_auth(report: Report, keys: dict[str, _ClientKey], options: dict[str, str]) -> None:
    auth = report.ensure_section("kafka", "auth")
    url_key, url = keys.get("sasl.oauthbearer.token.endpoint.url", ("", ""))
    jaas_key = keys.get("sasl.jaas.config", ("sasl.jaas.config", ""))[0]
    auth["type"] = "oidc"
    auth["token_url"] = url or report.add_variable_reference(jaas_key, "KAFKA_TOKEN_URL")
    auth["client_id"] = options.get("clientId") or report.add_variable_reference(
        jaas_key, "KAFKA_CLIENT_ID"
    )
    auth["client_secret"] = report.add_variable_reference(jaas_key, "KAFKA_CLIENT_SECRET")
    if scope := options.get("scope"):
        auth["scope"] = scope
    extensions = {
        name.removeprefix("extension_"): value
        for name, value in options.items()
        if name.startswith("extension_")
    }
    if extensions:
        auth["extensions"] = extensions
    for key in (jaas_key, url_key, keys.get("sasl.mechanism", ("", ""))[0]):
        if key:
            report.note_kept(key, "kafka.auth, type oidc")


def _fill_key_and_trust_stores(report: Report, keys: dict[str, _ClientKey]) -> None:
    """Take key and trust stores that librdkafka can read."""
    client = report.ensure_section("kafka")
    for store, pem in (("truststore", "ssl.ca.location"), ("keystore", "")):
        kind_key, kind = keys.get(f"ssl.{store}.type", ("", "JKS"))
        at_key, at = keys.get(f"ssl.{store}.location", ("", ""))
        word_key, _ = keys.get(f"ssl.{store}.password", ("", ""))
        if not at_key:
            continue
        if kind.upper() == "PEM" and pem:
            client[pem] = report.to_sink_file_value(at_key, "KAFKA", at)
            report.note_kept(at_key, f'kafka."{pem}"')
        elif kind.upper() == "PKCS12" and store == "keystore":
            client["ssl.keystore.location"] = report.to_sink_file_value(at_key, "KAFKA", at)
            client["ssl.keystore.password"] = report.add_variable_reference(
                word_key, "KAFKA_KEYSTORE_PASSWORD"
            )
            report.note_kept(at_key, 'kafka."ssl.keystore.location"')
        else:
            wanted = "ssl.ca.location" if pem else "ssl.keystore.location"
            report.note_to_add_by_hand(at_key, f'{_JKS}, and write kafka."{wanted}"')
        for key in filter(None, (kind_key, word_key)):
            report.note_dropped((key,), "goes with the store's location")


def _fill_client_key(
    report: Report, client: dict[str, object], name: str, written: _ClientKey
) -> None:
    key, value = written
    target = _RENAMED.get(name, name)
    why = _OTHER.get(name)
    refusal = client_settings.why_key_refused(target)
    if why is None and refusal:
        why = refusal
    if why is not None:
        report.note_dropped((key,), why)
    elif refusal is None:
        value = _SENTINELS.get(target, {}).get(value, value)
        client[target] = report.to_sink_file_value(key, "KAFKA", value)
        report.note_kept(key, f'kafka."{target}"')
    else:
        report.note_dropped((key,), "a key of the Java client that librdkafka does not have")
