from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gossip.tls import (
    Admitted,
    CertificateRefused,
    check_admissible,
    client_context,
    server_context,
    validity_fault,
)
from storage.keyring import KeyStore, node_id_of
from tests.unit.gossip_wire.wire_peers import certificate, identity, identity_of, key_name, name

KEY = Ed25519PrivateKey.generate()
GOOD = certificate(KEY)


def elliptic() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    begin = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name("ec"))
        .issuer_name(name("ec"))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, False, False, False, False), True
        )
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_the_certificate_of_the_key_store_is_admissible(tmp_path):
    store = KeyStore(tmp_path / "keys")
    store.prepare()
    own = store.node()
    assert check_admissible(own.certificate_der) == own.node_id


@pytest.mark.parametrize(
    "der",
    [
        certificate(KEY, ca=True),
        certificate(KEY, ca=True, cert_sign=True),
        certificate(KEY, ca=None),
        certificate(KEY, cert_sign=True),
        certificate(KEY, usage=False),
        certificate(KEY, signer=Ed25519PrivateKey.generate()),
        certificate(KEY, issuer="somebody else"),
        elliptic(),
        GOOD[:-1],
        GOOD + b"x",
        b"",
        b"x" * 2049,
    ],
    ids=[
        "ca",
        "ca that signs",
        "no constraints",
        "may sign certificates",
        "no usage",
        "signed by another",
        "names another issuer",
        "not Ed25519",
        "cut",
        "longer",
        "empty",
        "too large",
    ],
)
def test_a_certificate_of_the_wrong_shape_is_not_admissible(der):
    with pytest.raises(CertificateRefused):
        check_admissible(der)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@given(st.data())
def test_a_mutated_certificate_is_refused_or_still_the_same_key(data):
    """One bit of the encoding is not covered: the count of unused bits of the signature."""
    changed = bytearray(GOOD)
    where = data.draw(st.integers(0, len(changed) - 1))
    changed[where] = data.draw(st.integers(0, 255))
    try:
        assert check_admissible(bytes(changed)) == node_id_of(GOOD)
    except CertificateRefused:
        assert changed != GOOD


def test_contexts_speak_tls_13_only_and_ask_for_a_certificate():
    own = identity()
    for context in (server_context(own, [GOOD]), client_context(own, [GOOD])):
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
    assert server_context(own, [GOOD]).num_tickets == 0


def test_admitted_names_the_node_of_a_pinned_certificate_only():
    own, peer, other = identity(), identity(), identity()
    admitted = Admitted(own, [peer.certificate_der])
    assert admitted.peer(peer.certificate_der) == peer.node_id
    assert admitted.peer(other.certificate_der) is None
    assert admitted.peer(None) is None


def test_contexts_are_rebuilt_once_per_change_and_not_without_one():
    own, peer, other = identity(), identity(), identity()
    admitted = Admitted(own, [peer.certificate_der])
    before = admitted.server, admitted.client
    assert admitted.replace([peer.certificate_der, own.certificate_der]) == frozenset()
    assert (admitted.server, admitted.client) == before
    assert admitted.replace([other.certificate_der]) == {peer.node_id}
    assert admitted.server is not before[0]
    assert admitted.client is not before[1]
    assert admitted.nodes == {other.node_id}


def test_a_bad_certificate_in_the_set_changes_nothing():
    own, peer = identity(), identity()
    admitted = Admitted(own, [peer.certificate_der])
    before = admitted.server
    with pytest.raises(CertificateRefused):
        admitted.replace([identity().certificate_der, certificate(KEY, ca=True)])
    assert admitted.nodes == {peer.node_id}
    assert admitted.server is before


def test_a_node_stays_while_one_of_its_certificates_does():
    key = Ed25519PrivateKey.generate()
    old, new = certificate(key), certificate(key)
    admitted = Admitted(identity(), [old, new])
    assert admitted.peer(old) == admitted.peer(new)
    assert admitted.replace([new]) == frozenset()
    assert admitted.peer(old) is None


def test_renewing_shows_another_certificate():
    key = Ed25519PrivateKey.generate()
    own = identity_of(key, certificate(key))
    admitted = Admitted(own, [])
    before = admitted.server
    renewed = identity_of(key, certificate(key))
    admitted.renew(renewed)
    assert admitted.identity is renewed
    assert admitted.server is not before


@pytest.mark.parametrize(
    "after, fault",
    [
        (timedelta(days=-2), "certificate_not_yet_valid"),
        (timedelta(hours=-23), None),
        (timedelta(days=5), None),
        (timedelta(days=10, hours=23), None),
        (timedelta(days=11, hours=1), "certificate_expired"),
    ],
)
def test_validity_is_judged_with_a_day_of_allowance(after, fault):
    start = datetime(2030, 1, 1, tzinfo=UTC)
    der = certificate(KEY, start=start, days=10)
    assert validity_fault(der, start + after) == fault


def test_the_private_key_lies_in_no_open_file_afterwards():
    Admitted(identity(), [GOOD])
    opened = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.append(str(link.readlink()))
    assert [name for name in opened if "mnemesh" in name] == []


def test_identity_with_a_certificate_of_another_key_is_refused_by_tls():
    wrong = identity_of(Ed25519PrivateKey.generate(), GOOD)
    with pytest.raises(ssl.SSLError):
        server_context(wrong, [])


def test_every_test_certificate_has_a_name_of_its_own():
    assert key_name(KEY) != key_name(Ed25519PrivateKey.generate())
