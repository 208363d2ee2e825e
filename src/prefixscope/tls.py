"""Why a connection failed where one side spoke TLS and the other did not, or where its certificate is not trusted."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

_TRUST = "point REQUESTS_CA_BUNDLE at the certificate of its authority"
_SAID = (
    # what OpenSSL says, the cause, the remedy
    (
        ("WRONG_VERSION_NUMBER", "record layer", "HTTP_REQUEST"),
        "the server speaks plain HTTP",
        "use http:// in the URL",
    ),
    (("self-signed", "self signed"), "the certificate is self-signed, and not trusted here", _TRUST),
    (
        ("not yet valid", "has expired"),
        "the certificate's dates do not cover this machine's clock: one of the two is wrong",
        "compare `date -u` on both machines, or renew the certificate",
    ),
    (
        ("Hostname mismatch", "doesn't match", "IP address mismatch"),
        "the certificate was issued for another host name",
        "use the name in the certificate",
    ),
)


def explain(text: str) -> tuple[str, str]:
    """The likely cause of a failed handshake, and the remedy, from OpenSSL's words."""
    for said, cause, remedy in _SAID:
        if any(words in text for words in said):
            return cause, remedy
    if "certificate" in text.lower():
        return "the certificate is not trusted here", _TRUST
    return (
        "the server broke the handshake off: it speaks plain HTTP or another version of TLS, or wants a certificate",
        "try http:// in the URL, or `openssl s_client -connect HOST:PORT` for its own words",
    )


def spoken_at(url: str, timeout_s: float = 1.0) -> bool:
    """Whether a server that was asked in plain HTTP completes a TLS handshake instead; nothing is sent over it."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            return False
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False
