"""HTTP where HTTPS is meant, the reverse, and certificates that are not trusted: each is named, with what to do."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stub import MODELS, Reply, StubServer

from prefixscope import tls
from prefixscope.client import Client
from prefixscope.errors import Rejected, Unreachable


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only vouches for itself, with its key in the same file."""
    path = tmp_path_factory.mktemp("tls") / "self-signed.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path.with_suffix(".crt"))],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[StubServer]:
    """The stub, speaking TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = StubServer()
    server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
    with server:
        yield server


def test_a_self_signed_certificate_is_named(secure: StubServer) -> None:
    """The cause is that nobody here trusts it; the remedy is the variable that requests reads."""
    with Client(secure.url.replace("http://", "https://")) as client, pytest.raises(Unreachable) as caught:
        client.models()
    assert "self-signed" in caught.value.cause
    assert "REQUESTS_CA_BUNDLE" in caught.value.remedy


def test_a_trusted_certificate_is_taken(secure: StubServer, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the certificate in REQUESTS_CA_BUNDLE the same server is asked."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.with_suffix(".crt")))
    with Client(secure.url.replace("http://", "https://")) as client:
        assert client.models()[0].name == "tiny"


def test_http_to_a_tls_server_says_https(secure: StubServer) -> None:
    """A server that hangs up on plain HTTP and shakes hands over TLS is asked with the wrong scheme."""
    with Client(secure.url) as client, pytest.raises(Unreachable) as caught:
        client.models()
    assert "speaks HTTPS" in caught.value.cause
    assert secure.url.replace("http://", "https://") in caught.value.remedy


def test_a_proxys_word_for_it_is_understood(stub: StubServer) -> None:
    """nginx answers plain HTTP on its TLS port with a page; that is the wrong scheme too."""
    page = "<html><body>The plain HTTP request was sent to HTTPS port</body></html>"
    stub.always(MODELS, Reply(400, page))
    with Client(stub.url) as client, pytest.raises(Rejected) as caught:
        client.models()
    assert "use https://" in caught.value.remedy


def test_a_redirect_is_not_followed_blindly(stub: StubServer) -> None:
    """A redirected POST would arrive as a GET, so the other address is named instead."""
    stub.always(MODELS, Reply(308, "", {"Location": "https://elsewhere/v1/models"}))
    with Client(stub.url) as client, pytest.raises(Rejected) as caught:
        client.models()
    assert "https://elsewhere" in caught.value.remedy
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "plain HTTP"),
        ("certificate verify failed: certificate is not yet valid", "clock"),
        ("certificate verify failed: certificate has expired", "clock"),
        ("certificate verify failed: Hostname mismatch, certificate is not valid for 'x'", "another host name"),
        ("certificate verify failed: unable to get local issuer certificate", "not trusted"),
    ],
)
def test_each_failed_handshake_has_its_cause(words: str, cause: str) -> None:
    """OpenSSL's words become a cause: dates against this machine's clock, another name, an unknown authority."""
    assert cause in tls.explain(words)[0]
