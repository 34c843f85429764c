"""Certificates and keys for a deployment: an authority, the server's certificate, a key a site."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

DAYS = 825  # the longest that common TLS libraries accept of a server


class Keys(NamedTuple):
    """Where certificates and keys are."""

    authority: Path
    certificate: Path
    server_key: Path
    folder: Path

    def private(self, site: str) -> Path:
        """The key that a site keeps to itself."""
        return self.folder / f"{site}.key"

    def public(self, site: str) -> Path:
        """The key by which the server knows a site."""
        return self.folder / f"{site}.pub"


def write_keys(folder: Path, host: str, sites: Sequence[str]) -> Keys:
    """Write an authority and a server certificate for ``host``, and a key pair for each site.

    The authority's own key is not kept: nobody can sign a second server.

    Raises:
        FileExistsError: there are keys already.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def pem(key: Any) -> bytes:
        content: bytes = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return content

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(subject: str, public: Any, *extensions: Any) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("fedsift deployment"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=DAYS))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(authority, hashes.SHA256())
        content: bytes = certificate.public_bytes(serialization.Encoding.PEM)
        return content

    folder.mkdir(parents=True, exist_ok=True)
    keys = Keys(folder / "ca.pem", folder / "server.pem", folder / "server.key", folder)
    authority, server = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    known = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    _write(
        keys.authority,
        signed(
            "fedsift deployment",
            authority.public_key(),
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (usage, True),
            (known, False),
        ),
    )
    names: list[x509.GeneralName] = [
        _general(name) for name in dict.fromkeys((host, "localhost", "127.0.0.1"))
    ]
    _write(
        keys.certificate,
        signed(
            host,
            server.public_key(),
            (x509.SubjectAlternativeName(names), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (by, False),
        ),
    )
    _write(keys.server_key, pem(server), private=True)
    for site in sites:
        own = ec.generate_private_key(ec.SECP384R1())
        content = own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        _write(keys.private(site), content, private=True)
        public = own.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        _write(keys.public(site), public + b"\n")
    return keys


def _general(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a new file; a private one is its owner's alone from the start."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
