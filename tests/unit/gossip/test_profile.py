import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.affinity import quantise
from gossip.profile import (
    CURRENT_MS,
    Entry,
    Interest,
    KnownProfiles,
    Profile,
    decode,
    due,
    encode,
    moved,
    select,
    sign,
)
from storage import clock
from storage.errors import InvalidInput
from storage.keyring import public_bytes
from storage.model import MemoryKind
from storage.records import BadSignature, InvalidRecord

NODE = b"n" * 16
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def unit(*values):
    return np.array(values, dtype=np.float32)


def entry(number, *values):
    return Entry(bytes([number]) * 16, quantise(unit(*values)).raw, 0)


def profile(node=NODE, version=1, entries=None, model="m"):
    return Profile(node, entries or (entry(1, 1, 0),), 300_000, model, clock.from_millis(version))


def interest(number, kind, weight=1.0, dim=2):
    return Interest(bytes([number]) * 16, kind, np.ones(dim, dtype=np.float32), weight)


def test_a_signed_profile_comes_back_equal():
    made = profile()
    body = encode(made)
    assert decode(body, sign(KEY, body), NODE, public_bytes(KEY)) == made


def test_another_key_is_refused():
    body = encode(profile())
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    with pytest.raises(BadSignature):
        decode(body, sign(other, body), NODE, public_bytes(KEY))


def test_a_profile_in_another_name_is_refused():
    body = encode(profile(b"x" * 16))
    with pytest.raises(BadSignature):
        decode(body, sign(KEY, body), NODE, public_bytes(KEY))


@pytest.mark.parametrize(
    "entries",
    [
        (Entry(b"m" * 16, b"\0\0", 0),),
        (Entry(b"m" * 16, b"\1", 0), Entry(b"n" * 16, b"\1\1", 0)),
        (Entry(b"m" * 16, b"\1", 1),),
    ],
    ids=["zero", "uneven", "bias above 0"],
)
def test_a_signed_profile_that_makes_no_sense_is_refused(entries):
    made = profile()
    object.__setattr__(made, "entries", entries)
    body = encode(made)
    with pytest.raises(InvalidRecord):
        decode(body, sign(KEY, body), NODE, public_bytes(KEY))


def test_seventeen_entries_are_refused():
    with pytest.raises(InvalidInput):
        profile(entries=tuple(entry(n, 1, 0) for n in range(1, 18)))


def test_agents_come_first_then_aggregates_by_weight():
    chosen = select(
        [
            interest(1, MemoryKind.L1, 1.0),
            interest(2, MemoryKind.L2, 0.2),
            interest(3, MemoryKind.L2, 0.9),
            interest(4, MemoryKind.BEACON, 0.1),
            interest(5, MemoryKind.AGENT),
        ]
    )
    assert [e.memory_id[0] for e in chosen] == [5, 4, 3, 2, 1]


def test_a_light_interest_has_a_bias_below_zero():
    chosen = select([interest(1, MemoryKind.L2, 0.5), interest(2, MemoryKind.L2, 1.0)])
    assert [e.bias_ppm for e in chosen] == [0, -20_794]


def test_at_most_sixteen_entries_and_never_more_than_a_message_holds():
    many = [interest(n, MemoryKind.L1, dim=4) for n in range(1, 30)]
    assert len(select(many)) == 16
    wide = [interest(n, MemoryKind.L1, dim=4_096) for n in range(1, 30)]
    assert 0 < len(encode(profile(entries=select(wide)))) <= 16 * 1_024


@pytest.mark.parametrize(
    "bad", [interest(1, MemoryKind.CELL), interest(1, MemoryKind.L1, 0.0)], ids=["cell", "weight"]
)
def test_what_is_no_interest_is_refused(bad):
    with pytest.raises(InvalidInput):
        select([bad])


def test_an_interest_moves_by_more_than_a_twentieth_cosine():
    old = profile(entries=(entry(1, 1, 0),))
    assert not moved(old, (entry(1, 0.97, 0.2),))
    assert moved(old, (entry(1, 0.9, 0.4),))


def test_an_appearing_or_vanishing_interest_is_a_move():
    old = profile(entries=(entry(1, 1, 0),))
    assert moved(old, ())
    assert moved(old, (entry(1, 1, 0), entry(2, 1, 0)))


@pytest.mark.parametrize(
    "turned, since_ms, expected",
    [
        (False, 599_999, False),
        (False, 600_000, True),
        (True, 59_999, False),
        (True, 60_000, True),
    ],
)
def test_when_to_advertise_again(turned, since_ms, expected):
    old = profile(entries=(entry(1, 1, 0),))
    assert due(old, (entry(1, 0, 1) if turned else entry(1, 1, 0),), since_ms) is expected


def test_only_the_newest_version_is_kept():
    known = KnownProfiles()
    assert known.accept(profile(version=2), 0)
    assert not known.accept(profile(version=1), 1)
    assert known.get(NODE) == profile(version=2)


def test_a_view_is_complete_when_every_live_member_is_known():
    known, other = KnownProfiles(), b"o" * 16
    known.accept(profile(), 0)
    assert known.view([NODE], "m", 0).complete
    assert not known.view([NODE, other], "m", 0).complete
    known.accept(profile(other), 0)
    view = known.view([NODE, other], "m", 0, barred={other})
    assert view.complete
    assert [c.peer for c in view.candidates] == [NODE]


@pytest.mark.parametrize(
    "model, age_ms, complete",
    [("m", CURRENT_MS, True), ("m", CURRENT_MS + 1, False), ("other", 0, False)],
)
def test_a_stale_profile_or_one_of_another_model_counts_as_unknown(model, age_ms, complete):
    known = KnownProfiles()
    known.accept(profile(), 0)
    view = known.view([NODE], model, age_ms)
    assert view.complete is complete
    assert (view.candidates[0].profile is not None) is complete


def test_a_sample_counts_who_wants_the_vector():
    known = KnownProfiles()
    known.accept(profile(), 0)
    known.accept(profile(b"o" * 16, entries=(entry(1, 0, 1),)), 0)
    assert known.view([NODE, b"o" * 16, b"p" * 16], "m", 0).sample(quantise(unit(1, 0))) == (1, 2)
