"""The key store: one folder, one file per key, readable by its owner alone.

Keys never leave this folder by a database backup, a log or a peer. Every read checks owner and
mode first, because a key that others can read is no key. Writes go to a temporary file, are
synced and renamed, so that a crash leaves the old key or the new one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.x509.oid import NameOID

from storage.errors import KeyStoreError
from storage.model import ID_BYTES, AgentId, NodeId, ProjectId

SECRET_BYTES = 32
CERTIFICATE_YEARS = 10
MAX_KEY_FILE = 16 * 1024
MAX_INVITATION = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is on the wire. `repr` never shows the private key."""

    node_id: NodeId
    private_key: Ed25519PrivateKey
    certificate_der: bytes
    fingerprint: bytes

    def __repr__(self) -> str:
        return f"NodeIdentity({self.node_id.hex()})"


def public_bytes(key: Ed25519PrivateKey | Ed25519PublicKey) -> bytes:
    """The 32 raw bytes of an Ed25519 public key."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes_raw()


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """True when `signature` over `message` was made by the key with these raw public bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def node_id_of(certificate_der: bytes) -> NodeId:
    """BLAKE2b-128 of the certificate's public key info; a new key is a new node.

    Raises ValueError when the bytes are no certificate.
    """
    spki = (
        x509.load_der_x509_certificate(certificate_der)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return hashlib.blake2b(spki, digest_size=ID_BYTES).digest()


def certificate_key(certificate_der: bytes) -> bytes:
    """Raw Ed25519 public bytes of a certificate. Raises ValueError for another key type."""
    key = x509.load_der_x509_certificate(certificate_der).public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the certificate's key is not Ed25519")
    return key.public_bytes_raw()


def fingerprint_of(certificate_der: bytes) -> bytes:
    """SHA-256 of the certificate, what peers pin."""
    return hashlib.sha256(certificate_der).digest()


class KeyStore:
    """`keys/` of a workspace.

    Raises KeyStoreError, naming the file, when the folder or a key is missing, damaged, owned
    by somebody else or readable by others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Create the folder (0700) and its sub-folders, and check what is there."""
        for part in (
            self.folder,
            *(self.folder / name for name in ("agents", "projects", "kcert")),
        ):
            part.mkdir(mode=0o700, exist_ok=True)
            _check(part, 0o700)

    def node(self) -> NodeIdentity:
        """This node's key and self-signed certificate, made on first use."""
        key = self._signing_key(self.folder / "node.key", create=True)
        path = self.folder / "node.crt"
        if not path.exists():
            _write(path, _self_signed(key).public_bytes(serialization.Encoding.PEM))
        try:
            certificate = x509.load_pem_x509_certificate(_read(path))
        except ValueError as error:
            raise KeyStoreError(f"{path} is no certificate") from error
        der = certificate.public_bytes(serialization.Encoding.DER)
        try:
            matches = certificate_key(der) == public_bytes(key)
        except ValueError as error:
            raise KeyStoreError(f"{path} does not hold an Ed25519 key") from error
        if not matches:
            raise KeyStoreError(f"{path} does not belong to {self.folder / 'node.key'}")
        return NodeIdentity(node_id_of(der), key, der, fingerprint_of(der))

    def erasure_key(self) -> Ed25519PrivateKey:
        """Signs certificates and receipts."""
        return self._signing_key(self.folder / "erasure.key", create=True)

    def ledger_key(self) -> Ed25519PrivateKey:
        """Signs tree heads."""
        return self._signing_key(self.folder / "ledger.key", create=True)

    def operator_key(self) -> Ed25519PrivateKey:
        """Signs fences for scopes whose agent is not at home here."""
        return self._signing_key(self.folder / "operator.key", create=True)

    def create_agent(self, agent_id: AgentId) -> Ed25519PrivateKey:
        """The agent's own key, made once, kept only at its home node."""
        return self._signing_key(self._agent_path(agent_id), create=True)

    def agent(self, agent_id: AgentId) -> Ed25519PrivateKey | None:
        """The key of an agent at home here; None for others."""
        path = self._agent_path(agent_id)
        return self._signing_key(path, create=False) if path.exists() else None

    def has_agent(self, agent_id: AgentId) -> bool:
        """Is the agent's key here."""
        return self._agent_path(agent_id).exists()

    def remove_agent(self, agent_id: AgentId) -> bool:
        """Destroy an agent's key, as its erasure asks. True when there was one."""
        return _unlink(self._agent_path(agent_id))

    def create_project(self, project_id: ProjectId) -> Ed25519PrivateKey:
        """The key that signs the project's access list."""
        return self._signing_key(self._project_path(project_id), create=True)

    def project(self, project_id: ProjectId) -> Ed25519PrivateKey | None:
        """The project key, on the node that created the project; None elsewhere."""
        path = self._project_path(project_id)
        return self._signing_key(path, create=False) if path.exists() else None

    def handle_key(self) -> bytes | None:
        """The mesh's key for scope handles; None before a mesh was made or joined."""
        path = self.folder / "handle.key"
        return self._secret(path) if path.exists() else None

    def set_handle_key(self, key: bytes) -> None:
        """Install the mesh's handle key. Another one than the present is refused."""
        if len(key) != SECRET_BYTES:
            raise KeyStoreError("a handle key has 32 bytes")
        present = self.handle_key()
        if present is not None and present != key:
            raise KeyStoreError("this workspace belongs to another mesh")
        if present is None:
            _write(self.folder / "handle.key", key)

    def change_handle_key(self, key: bytes) -> None:
        """Move to another mesh. The caller has made sure that nothing names the old handles."""
        if len(key) != SECRET_BYTES:
            raise KeyStoreError("a handle key has 32 bytes")
        _write(self.folder / "handle.key", key)

    def invitation(self) -> bytes | None:
        """An invitation that waits for the next start."""
        path = self.folder / "invitation.json"
        return _read(path, MAX_INVITATION) if path.exists() else None

    def keep_invitation(self, data: bytes) -> None:
        """Keep an invitation for the next start; it holds the mesh's handle key."""
        _write(self.folder / "invitation.json", data)

    def drop_invitation(self) -> None:
        """The invitation was used."""
        _unlink(self.folder / "invitation.json")

    def create_kcert(self, erasure_id: str) -> bytes:
        """The leaf key of one erasure, durable before its intent is."""
        path = self._kcert_path(erasure_id)
        if path.exists():
            return self._secret(path)
        key = secrets.token_bytes(SECRET_BYTES)
        _write(path, key)
        return key

    def kcert(self, erasure_id: str) -> bytes | None:
        """The leaf key of an erasure, None when it was destroyed or never made."""
        path = self._kcert_path(erasure_id)
        return self._secret(path) if path.exists() else None

    def kcert_ids(self) -> list[str]:
        """Erasures that have a leaf key here."""
        return sorted(path.name for path in (self.folder / "kcert").glob("er_*"))

    def remove_kcert(self, erasure_id: str) -> bool:
        """Destroy a leaf key; after that no leaf of that certificate can be opened."""
        return _unlink(self._kcert_path(erasure_id))

    def _agent_path(self, agent_id: AgentId) -> Path:
        return self.folder / "agents" / f"{agent_id.hex()}.key"

    def _project_path(self, project_id: ProjectId) -> Path:
        return self.folder / "projects" / f"{project_id.hex()}.key"

    def _kcert_path(self, erasure_id: str) -> Path:
        if not erasure_id.startswith("er_") or not erasure_id[3:].isalnum():
            raise KeyStoreError("not an erasure id")
        return self.folder / "kcert" / erasure_id

    def _signing_key(self, path: Path, *, create: bool) -> Ed25519PrivateKey:
        if create and not path.exists():
            _write(path, _pem(Ed25519PrivateKey.generate()))
        try:
            key = serialization.load_pem_private_key(_read(path), password=None)
        except (ValueError, TypeError) as error:
            raise KeyStoreError(f"{path} is damaged or no private key") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyStoreError(f"{path} is not an Ed25519 key")
        return key

    def _secret(self, path: Path) -> bytes:
        data = _read(path)
        if len(data) != SECRET_BYTES:
            raise KeyStoreError(f"{path} has {len(data)} bytes, expected {SECRET_BYTES}")
        return data


def sync_folder(folder: Path) -> None:
    """Make a create, rename or unlink in `folder` survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _self_signed(key: Ed25519PrivateKey) -> x509.Certificate:
    spki = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # A name of its own for each node: OpenSSL looks trusted certificates up by name, and equal
    # names make a handshake slower with every admitted peer.
    name = x509.Name(
        [
            x509.NameAttribute(
                NameOID.COMMON_NAME, hashlib.blake2b(spki, digest_size=ID_BYTES).hexdigest()
            )
        ]
    )
    start = datetime.now(UTC) - timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=365 * CERTIFICATE_YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=False,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, algorithm=None)
    )


def _check(path: Path, mode: int) -> None:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        raise KeyStoreError(f"{path} is a symbolic link")
    if info.st_uid != os.geteuid():
        raise KeyStoreError(f"{path} belongs to user {info.st_uid}, not to this process")
    if stat.S_IMODE(info.st_mode) & ~mode:
        raise KeyStoreError(
            f"{path} has mode {stat.S_IMODE(info.st_mode):04o}; it must not be open to others: "
            f"chmod {mode:04o} {path}"
        )


def _read(path: Path, limit: int = MAX_KEY_FILE) -> bytes:
    try:
        _check(path, 0o600)
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError as error:
        raise KeyStoreError(f"{path} is missing") from error
    except PermissionError as error:
        raise KeyStoreError(f"{path} cannot be read") from error


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True
