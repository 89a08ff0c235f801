"""Makes thousands of seeds a minute possible: quick copies, and events without encoding.

``dataclasses.replace`` asks every field for its rules at every call, a third of all time. The one
here copies the slots and sets what changes. Classes that check themselves when made
(``__post_init__``) keep the library's. The codec has tests of its own; some seeds use it still.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import headgate.control_protocol.testing.log as fake_log
from headgate.control_protocol import machine_driver, multipart_status
from headgate.control_protocol.events import Envelope

_Copier = Callable[[Any, Mapping[str, Any]], Any]
_copiers: dict[type, _Copier] = {}
_decoded = fake_log._read


def replace(value: Any, /, **changes: Any) -> Any:
    """As ``dataclasses.replace``."""
    kind = type(value)
    copier = _copiers.get(kind)
    if copier is None:
        copier = _copiers[kind] = _copier_of(kind)
    return copier(value, changes)


def _copier_of(kind: type) -> _Copier:
    names = [field.name for field in dataclasses.fields(kind)]
    setters = {name: getattr(getattr(kind, name, None), "__set__", None) for name in names}
    if hasattr(kind, "__post_init__") or None in setters.values():
        return lambda value, changes: dataclasses.replace(value, **changes)
    lines = [f"    set_{name}(copy, value.{name})" for name in names]
    source = "\n".join(
        [
            "def copied(value, changes):",
            "    copy = new(kind)",
            *lines,
            "    for name, changed in changes.items():",
            "        setters[name](copy, changed)",
            "    return copy",
        ]
    )
    known = {"new": object.__new__, "kind": kind, "setters": setters}
    known |= {f"set_{name}": setter for name, setter in setters.items()}
    exec(source, known)
    return known["copied"]


@contextmanager
def quick_copies() -> Iterator[None]:
    """While it lasts, every module of the product and of its proofs uses the quicker one."""
    slow = dataclasses.replace
    modules: list[Any] = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(("headgate.", "exploration.", "simulation."))
        and getattr(module, "replace", None) is slow
    ]
    for module in modules:
        module.replace = replace
    try:
        yield
    finally:
        for module in modules:
            module.replace = slow


@contextmanager
def carried(part_bytes: int | None) -> Iterator[None]:
    """Events travel as they are; or through the real codec, in parts of at most so many bytes."""
    changes: dict[str, tuple[Any, Any]] = {}
    if part_bytes is None:
        changes["Wire"] = (fake_log, _NoWire)
        changes["_read"] = (fake_log, lambda _, message, __: message)
        changes["split_status"] = (machine_driver, lambda status: [status])
    else:
        changes["split_status"] = (
            machine_driver,
            lambda status: multipart_status.split_status(status, part_bytes),
        )
    before = {name: getattr(module, name) for name, (module, _) in changes.items()}
    for name, (module, changed) in changes.items():
        setattr(module, name, changed)
    try:
        yield
    finally:
        for name, (module, _) in changes.items():
            setattr(module, name, before[name])


def heard_anew() -> None:
    """Forget what was decoded: a mutant may hear otherwise."""
    _decoded.cache_clear()


class _NoWire:
    """Envelopes are values: nobody can change one after it was said."""

    @staticmethod
    def encode_and_sign_if_keyed(envelope: Envelope, _: object) -> Envelope:
        return envelope
