"""Certificates of the mesh: which ones may be pinned, and TLS contexts that admit only those.

There is no authority: every node signs its own certificate and a project's ACL pins it. The
chain check of TLS is the first wall; `Admitted.peer` is the second and must follow every
handshake, since OpenSSL would also take a leaf minted by an admitted certificate that claims to
be an authority. Validity times are judged here with an allowance for wrong clocks, so that the
refusal can be told. Never does IO on sockets, never writes a key to a file system.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import SignatureAlgorithmOID

from storage.errors import InvalidInput, Unavailable
from storage.keyring import NodeIdentity, fingerprint_of, node_id_of
from storage.model import NodeId

MAX_CERTIFICATE = 2048
CLOCK_ALLOWANCE = timedelta(days=1)
_NO_CHECK_TIME = 0x200000
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class CertificateRefused(InvalidInput):
    """The certificate is not admissible."""

    code = "certificate_refused"


def check_admissible(certificate_der: bytes) -> NodeId:
    """The node id of a certificate that may be pinned.

    Raises CertificateRefused unless it is one X.509 v3 certificate of at most 2 KiB, Ed25519,
    signed by its own key, CA:FALSE, with a key usage that signs data and no certificates.
    Times are not judged: a pin outlives a clock error.
    """
    if len(certificate_der) > MAX_CERTIFICATE:
        raise CertificateRefused(f"a certificate of more than {MAX_CERTIFICATE} bytes")
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        key = certificate.public_key()
        extensions = certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
    except _UNREADABLE as error:
        raise CertificateRefused("no readable version 3 certificate of a leaf") from error
    algorithm = certificate.signature_algorithm_oid
    if not isinstance(key, Ed25519PublicKey) or algorithm != SignatureAlgorithmOID.ED25519:
        raise CertificateRefused("the key or the signature is not Ed25519")
    if constraints.ca or usage.key_cert_sign:
        raise CertificateRefused("the certificate claims to be an authority")
    if not usage.digital_signature:
        raise CertificateRefused("the certificate's key may not sign")
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes)
    except InvalidSignature as error:
        raise CertificateRefused("the certificate is not signed by its own key") from error
    if certificate.issuer != certificate.subject:
        raise CertificateRefused("the certificate names another issuer")
    return node_id_of(certificate_der)


def validity_fault(certificate_der: bytes, now: datetime) -> str | None:
    """`certificate_expired`, `certificate_not_yet_valid`, or None, with a day of allowance."""
    certificate = x509.load_der_x509_certificate(certificate_der)
    if now - CLOCK_ALLOWANCE > certificate.not_valid_after_utc:
        return "certificate_expired"
    if now + CLOCK_ALLOWANCE < certificate.not_valid_before_utc:
        return "certificate_not_yet_valid"
    return None


def server_context(identity: NodeIdentity, admitted: Iterable[bytes]) -> ssl.SSLContext:
    """Listener side: TLS 1.3 only, mutual, trusting exactly these DER certificates.

    No session tickets: a resumed session would outlive a removal.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, admitted)
    context.num_tickets = 0
    return context


def open_context(identity: NodeIdentity) -> ssl.SSLContext:
    """Listener side for callers without a certificate, who prove themselves in what they say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    _load_own(context, identity)
    return context


def client_context(identity: NodeIdentity, pinned: Iterable[bytes]) -> ssl.SSLContext:
    """Dialling side; see `server_context`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, pinned)


class Admitted:
    """The certificates that may open a link now, and the two contexts made of them.

    Contexts are built when the set or the identity changes, which costs milliseconds (0.2 s at
    1,000 certificates), and are shared by all handshakes until the next change. A node may have
    several certificates of one key, as during a rotation. Not thread-safe.
    """

    def __init__(self, identity: NodeIdentity, certificates: Iterable[bytes] = ()) -> None:
        self._identity = identity
        self._certificates: dict[bytes, bytes] = {}
        self._nodes: dict[bytes, NodeId] = {}
        self._build()
        self.replace(certificates)

    @property
    def identity(self) -> NodeIdentity:
        return self._identity

    @property
    def server(self) -> ssl.SSLContext:
        """For the next accept; read it anew for each connection."""
        return self._server

    @property
    def client(self) -> ssl.SSLContext:
        """For the next dial; read it anew for each connection."""
        return self._client

    @property
    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._nodes.values())

    @property
    def fingerprints(self) -> frozenset[bytes]:
        return frozenset(self._nodes)

    def replace(self, certificates: Iterable[bytes]) -> frozenset[NodeId]:
        """Admit exactly these DER certificates; returns the nodes that are out now.

        This node's own certificate is left out. Raises CertificateRefused for one that is not
        admissible, and changes nothing then.
        """
        wanted: dict[bytes, bytes] = {}
        nodes: dict[bytes, NodeId] = {}
        for certificate in certificates:
            node = check_admissible(certificate)
            if node != self._identity.node_id:
                fingerprint = fingerprint_of(certificate)
                wanted[fingerprint] = certificate
                nodes[fingerprint] = node
        removed = self.nodes - frozenset(nodes.values())
        if wanted != self._certificates:
            self._certificates, self._nodes = wanted, nodes
            self._build()
        return removed

    def renew(self, identity: NodeIdentity) -> None:
        """Show another certificate of this node from the next handshake on."""
        self._identity = identity
        self._build()

    def peer(self, certificate_der: bytes | None) -> NodeId | None:
        """The node that a handshake proved, None when its certificate is not pinned.

        Call it after every handshake, with the certificate that the handshake showed.
        """
        if certificate_der is None:
            return None
        return self._nodes.get(fingerprint_of(certificate_der))

    def _build(self) -> None:
        pins = self._certificates.values()
        self._server = server_context(self._identity, pins)
        self._client = client_context(self._identity, pins)


def _context(side: int, identity: NodeIdentity, pins: Iterable[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    trusted = b"".join(pins)
    if trusted:
        context.load_verify_locations(cadata=trusted)
    _load_own(context, identity)
    return context


def _load_own(context: ssl.SSLContext, identity: NodeIdentity) -> None:
    """Give OpenSSL the key by a file of memory, since it only takes a path."""
    if not hasattr(os, "memfd_create"):
        raise Unavailable("TLS between nodes needs memfd_create, which this system lacks")
    certificate = ssl.DER_cert_to_PEM_cert(identity.certificate_der).encode("ascii")
    key = identity.private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor = os.memfd_create("mnemesh-node", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
