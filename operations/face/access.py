"""Decides who may do what over HTTP. Pure.

A viewer may look, an operator may also act. Tokens are compared in constant time. A browser sends
one as the password of HTTP's basic login, which only permits looking: requests that act need
``Authorization: Bearer``, which no page of another site can make a browser send.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from enum import IntEnum

from headgate.sink.face_settings import HttpSettings, is_loopback


class Role(IntEnum):
    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2


def role_of(authorization: str, http: HttpSettings) -> Role:
    """Return the role that the header grants; without a viewer token all (on loopback) may look."""
    scheme, _, given = authorization.strip().partition(" ")
    bearer = scheme.lower() == "bearer"
    token = given.strip() if bearer else _password(scheme, given)
    operator = _same(token, http.operator_token.text)
    viewer = _same(token, http.viewer_token.text)
    if operator and bearer:
        return Role.OPERATOR
    if viewer or operator or not http.viewer_token:
        return Role.VIEWER
    return Role.NOBODY


def _password(scheme: str, given: str) -> str:
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _same(given: str, wanted: str) -> bool:
    equal = hmac.compare_digest(given.encode(), wanted.encode())
    return equal and bool(wanted)


def own_host(headers: Mapping[str, str], http: HttpSettings) -> bool:
    """Return whether the request names this machine.

    Without tokens, a foreign name that resolves to this machine gets no answer: a page under that
    name could read it.
    """
    if http.viewer_token:
        return True
    host = headers.get("Host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name.removeprefix("[").removesuffix("]"))
