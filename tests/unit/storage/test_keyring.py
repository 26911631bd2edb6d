"""Keys are made once, survive, and are refused when others could have touched them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from storage.errors import KeyStoreError
from storage.keyring import (
    KeyStore,
    certificate_key,
    fingerprint_of,
    node_id_of,
    public_bytes,
    verify,
)

AGENT = bytes([1]) * 16


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys")
    store.prepare()
    return store


def test_everything_is_private_and_nothing_temporary_stays(keys: KeyStore) -> None:
    keys.node()
    keys.create_agent(AGENT)
    keys.create_project(AGENT)
    keys.create_kcert("er_abc")
    keys.set_handle_key(bytes(32))
    for path in keys.folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
        assert not path.name.startswith("."), path
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700


def test_a_node_keeps_its_identity(keys: KeyStore) -> None:
    first, second = keys.node(), KeyStore(keys.folder).node()
    assert first.node_id == second.node_id == node_id_of(first.certificate_der)
    assert first.certificate_der == second.certificate_der
    assert first.fingerprint == fingerprint_of(first.certificate_der)
    assert certificate_key(first.certificate_der) == public_bytes(first.private_key)
    assert repr(first) == f"NodeIdentity({first.node_id.hex()})"


def test_two_nodes_differ(tmp_path: Path) -> None:
    identities = []
    for name in ("a", "b"):
        store = KeyStore(tmp_path / name)
        store.prepare()
        identities.append(store.node())
    assert identities[0].node_id != identities[1].node_id
    subjects = {x509.load_der_x509_certificate(each.certificate_der).subject for each in identities}
    assert len(subjects) == 2


def test_keys_are_made_once_and_destroyed_once(keys: KeyStore) -> None:
    assert keys.agent(AGENT) is None
    made = keys.create_agent(AGENT)
    again = keys.create_agent(AGENT)
    assert public_bytes(made) == public_bytes(again)
    assert keys.remove_agent(AGENT)
    assert not keys.remove_agent(AGENT)
    assert keys.agent(AGENT) is None


def test_leaf_keys_are_listed_until_they_are_destroyed(keys: KeyStore) -> None:
    key = keys.create_kcert("er_abc1")
    assert keys.create_kcert("er_abc1") == key == keys.kcert("er_abc1")
    (keys.folder / "kcert" / ".er_left.0011").write_bytes(b"half")
    assert keys.kcert_ids() == ["er_abc1"]
    assert keys.remove_kcert("er_abc1")
    assert keys.kcert("er_abc1") is None


@pytest.mark.parametrize("name", ["", "er_", "er_../x", "../er_x", "er_a/b", "er_a.b", "x"])
def test_a_leaf_key_has_a_plain_name(keys: KeyStore, name: str) -> None:
    with pytest.raises(KeyStoreError, match="not an erasure id"):
        keys.create_kcert(name)


def test_a_workspace_belongs_to_one_mesh(keys: KeyStore) -> None:
    assert keys.handle_key() is None
    keys.set_handle_key(bytes(32))
    keys.set_handle_key(bytes(32))
    with pytest.raises(KeyStoreError, match="another mesh"):
        keys.set_handle_key(bytes([1]) * 32)
    with pytest.raises(KeyStoreError, match="32 bytes"):
        keys.set_handle_key(b"short")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o700])
def test_a_key_that_others_can_read_is_refused(keys: KeyStore, mode: int) -> None:
    keys.create_agent(AGENT)
    path = keys.folder / "agents" / f"{AGENT.hex()}.key"
    path.chmod(mode)
    with pytest.raises(KeyStoreError, match=rf"has mode {mode:04o}.*chmod 0600"):
        keys.agent(AGENT)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_folder_that_others_can_enter_is_refused(keys: KeyStore, mode: int) -> None:
    keys.folder.chmod(mode)
    with pytest.raises(KeyStoreError, match=r"chmod 0700"):
        keys.prepare()


def test_a_symbolic_link_is_no_key(keys: KeyStore, tmp_path: Path) -> None:
    keys.create_agent(AGENT)
    path = keys.folder / "agents" / f"{AGENT.hex()}.key"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyStoreError, match="symbolic link"):
        keys.agent(AGENT)


def test_a_folder_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "keys").symlink_to(tmp_path / "real")
    with pytest.raises(KeyStoreError, match="symbolic link"):
        KeyStore(tmp_path / "keys").prepare()


def test_a_key_of_another_user_is_refused(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.create_agent(AGENT)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(KeyStoreError, match="belongs to user"):
        keys.agent(AGENT)


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_damaged_key_is_named_and_never_replaced(keys: KeyStore, content: bytes) -> None:
    keys.node()
    path = keys.folder / "node.key"
    path.write_bytes(content)
    with pytest.raises(KeyStoreError, match=r"node\.key is damaged"):
        keys.node()
    assert path.read_bytes() == content


def test_a_key_of_another_kind_is_refused(keys: KeyStore) -> None:
    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    keys.erasure_key()
    (keys.folder / "erasure.key").write_bytes(pem)
    with pytest.raises(KeyStoreError, match="not an Ed25519 key"):
        keys.erasure_key()


def test_a_secret_of_another_length_is_refused(keys: KeyStore) -> None:
    keys.set_handle_key(bytes(32))
    (keys.folder / "handle.key").write_bytes(bytes(31))
    with pytest.raises(KeyStoreError, match="has 31 bytes, expected 32"):
        keys.handle_key()


def test_a_foreign_certificate_is_refused(keys: KeyStore, tmp_path: Path) -> None:
    keys.node()
    other = KeyStore(tmp_path / "other")
    other.prepare()
    other.node()
    (keys.folder / "node.crt").write_bytes((other.folder / "node.crt").read_bytes())
    with pytest.raises(KeyStoreError, match="does not belong to"):
        keys.node()


def test_a_damaged_certificate_is_named(keys: KeyStore) -> None:
    keys.node()
    (keys.folder / "node.crt").write_bytes(b"no certificate")
    with pytest.raises(KeyStoreError, match=r"node\.crt is no certificate"):
        keys.node()


def test_a_signature_counts_for_its_key_and_message_alone(keys: KeyStore) -> None:
    key = keys.create_agent(AGENT)
    other = keys.create_agent(bytes(16))
    signature = key.sign(b"message")
    assert verify(public_bytes(key), signature, b"message")
    assert not verify(public_bytes(other), signature, b"message")
    assert not verify(public_bytes(key), signature, b"massage")
    assert not verify(public_bytes(key), bytes(64), b"message")
    assert not verify(public_bytes(key), b"", b"message")
    assert not verify(b"", signature, b"message")
