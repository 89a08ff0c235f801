"""Signs assertions: short statements, by a private key, about who asks (RFC 7515, RFC 7523)."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from headgate.control_protocol.errors import AuthenticationUnfit, ConfigurationError

LIFE_S = 60
"""An assertion is made for one request, whose clocks may differ a little."""


def build_signed_assertion(
    pem: str, claims: Mapping[str, Any], where: str, *, key_id: str = "", life_s: int = LIFE_S
) -> str:
    """Return a JWT with these claims, a time of its own and an id, in the algorithm of the key.

    ``where``: the setting that the key comes from. Raises ``AuthenticationUnfit`` for a text that
    is no key, ``ConfigurationError`` without the library; neither repeats the text.
    """
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise ConfigurationError(
            f"{where} needs a library that is not installed: cryptography",
            "pip install 'headgate[private-key]'",
        ) from error
    try:
        key = load_pem_private_key(pem.encode(), None)
    except Exception:  # noqa: BLE001 - of several kinds, and some quote what they were given
        raise AuthenticationUnfit(
            f"{where} holds no private key that can be read",
            "name a key in PEM, without a passphrase: RSA, EC or Ed25519",
        ) from None
    name, sign = _algorithm_and_signer(key, where)
    now_s = int(time.time())
    header = {"alg": name, "typ": "JWT", **({"kid": key_id} if key_id else {})}
    body = {**claims, "jti": str(uuid.uuid4()), "iat": now_s, "exp": now_s + life_s}
    text = ".".join(_base64_url(json.dumps(part).encode()) for part in (header, body))
    return f"{text}.{_base64_url(sign(text.encode()))}"


def _algorithm_and_signer(key: Any, where: str) -> tuple[str, Callable[[bytes], bytes]]:
    """Return the name of what the key signs with, and what signs."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256", lambda data: key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA", key.sign
    curves = {"secp256r1": ("ES256", hashes.SHA256()), "secp384r1": ("ES384", hashes.SHA384())}
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in curves:
        name, digest = curves[key.curve.name]
        size = key.curve.key_size // 8

        def sign(data: bytes) -> bytes:
            pair = decode_dss_signature(key.sign(data, ec.ECDSA(digest)))
            return b"".join(number.to_bytes(size, "big") for number in pair)

        return name, sign
    raise AuthenticationUnfit(
        f"{where} holds a key of a kind that token servers do not take",
        "use RSA, EC (P-256 or P-384) or Ed25519",
    )


def _base64_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
