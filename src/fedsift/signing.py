"""Records that are kept: each with a hash of itself, and a signature where there is a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.run_folder import RunError
from fedsift.sealed import fingerprint

__all__ = ["check_key", "check_signature", "record_hash", "signed"]


def record_hash(record: Mapping[str, Any]) -> str:
    """Return the hash of a record: of all of it but the hash itself and the signature."""
    return fingerprint({k: v for k, v in record.items() if k not in {"hash", "signature"}})


def signed(record: Mapping[str, Any], key_file: Path | None = None) -> dict[str, Any]:
    """Return a record with its hash and, with an Ed25519 private key (PEM), a signature of it.

    A signed record names its public key (``key``, hex), too, which the hash is of as well.

    Raises:
        RunError: the key cannot be used.
    """
    whole, private = dict(record), None if key_file is None else _key(key_file)
    if private is not None:
        whole["key"] = private.public_key().public_bytes_raw().hex()
    whole["hash"] = record_hash(whole)
    if private is not None:
        whole["signature"] = private.sign(whole["hash"].encode()).hex()
    return whole


def check_signature(record: Mapping[str, Any], key_file: Path | None = None) -> bool:
    """Tell whether a record is as it was signed with a key.

    Args:
        record: as `signed` returns it.
        key_file: a private or public PEM file; by default the key is the one that the record names,
            which tells that the record is whole, and not whose key it is.

    Raises:
        RunError: the key of the file cannot be read, or cryptography is not installed.
    """
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    if record.get("hash") != record_hash(record):
        return False
    try:
        if key_file is None:
            key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(record["key"]))
        else:
            key = _key(key_file, public=True)
        key.verify(bytes.fromhex(record["signature"]), record["hash"].encode())
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False
    return True


def check_key(key_file: Path) -> None:
    """Refuse a key that cannot sign.

    Raises:
        RunError: as `append_record` says.
    """
    _key(key_file)


def _key(file: Path, *, public: bool = False) -> Any:
    """Return a private key, or with ``public`` the public one of either kind of file.

    Raises:
        RunError: cryptography is not installed, or the file holds no Ed25519 key.
    """
    ed25519 = _ed25519()
    from cryptography.hazmat.primitives import serialization

    try:
        content = file.read_bytes()
        if public and b"PUBLIC" in content:
            key: Any = serialization.load_pem_public_key(content)
        else:
            private: Any = serialization.load_pem_private_key(content, None)
            key = private.public_key() if public else private
    except OSError as error:
        raise RunError(f"the key {file} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        msg = f"{file} is no unencrypted Ed25519 key in PEM form; make one with openssl genpkey"
        raise RunError(msg) from error
    wanted = ed25519.Ed25519PublicKey if public else ed25519.Ed25519PrivateKey
    if not isinstance(key, wanted):
        raise RunError(f"{file} holds another kind of key; give an Ed25519 one")
    return key


def _ed25519() -> Any:
    """Return the module of such keys.

    Raises:
        RunError: cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        msg = "signatures need the package cryptography: pip install 'fedsift[sign]'"
        raise RunError(msg) from error
    return ed25519
