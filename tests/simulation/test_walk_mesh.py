import pytest

from tests.support.walk_mesh import Faults, WalkMesh, finished

CALM = Faults()
ROUGH = Faults(loss=0.05, repeat=0.05, delay_ms=(1, 200))


@pytest.mark.parametrize("size, known_share", [(30, 1.0), (30, 0.5), (60, 0.5), (60, 1.0)])
@pytest.mark.parametrize("faults", [CALM, ROUGH], ids=["calm", "rough"])
def test_sends_stay_within_the_budget_and_wanting_nodes_are_reached(size, known_share, faults):
    mesh = WalkMesh(size, 11, known_share=known_share, faults=faults)
    for _ in range(30):
        mesh.publish()
        mesh.run(mesh.now + 500)
    mesh.run()
    mesh.finally_bounded()
    assert finished(mesh)
    assert mesh.metrics["energy_violation_total", ""] == 0
    push = mesh.recall()
    for _ in range(4 * size):
        mesh.repair_round()
    print(f"push {push:.3f}, sends {sum(mesh.sends.values())}")
    assert push >= 0.85
    assert mesh.recall() == 1.0


def test_honest_retries_and_repeats_are_no_violation():
    mesh = WalkMesh(30, 5, known_share=0.6, faults=ROUGH)
    for _ in range(20):
        mesh.publish()
    mesh.run()
    assert mesh.metrics["energy_violation_total", ""] == 0


def test_a_fully_known_mesh_sends_to_nobody_who_does_not_want():
    mesh = WalkMesh(40, 3)
    diffs = [mesh.publish() for _ in range(20)]
    mesh.run()
    for diff in diffs:
        receivers = {to for _, to, diff_id in mesh.sent_pairs if diff_id == diff.diff_id}
        assert receivers <= mesh.wanting(diff)


def test_energy_is_spent_passed_on_or_counted_as_residue():
    mesh = WalkMesh(40, 9, known_share=0.5)
    diff = mesh.publish()
    mesh.run()
    spent = mesh.metrics["energy_spent_total", ""]
    residue = mesh.metrics["energy_residual_total", ""]
    clamped = diff.e0_milli - spent - residue
    assert clamped >= 0
    assert spent >= 1_000 * mesh.sends[diff.diff_id]


def test_one_seed_is_one_log():
    logs = []
    for _ in range(2):
        mesh = WalkMesh(30, 21, known_share=0.5, faults=ROUGH)
        for _ in range(5):
            mesh.publish()
        mesh.run()
        logs.append(mesh.log)
    assert logs[0] == logs[1]


def test_c_20_a_node_that_was_down_catches_up_by_repair_alone():
    mesh = WalkMesh(30, 8, known_share=0.5)
    absent = next(iter(mesh.nodes.values()))
    absent.up = False
    others = [node_id for node_id in mesh.nodes if node_id != absent.id]
    for _ in range(30):
        mesh.publish(others[mesh.rng.randrange(len(others))])
    mesh.run()
    absent.up = True
    sends = sum(mesh.sends.values())
    for _ in range(120):
        mesh.repair_round()
    mesh.run()
    missing = [d for d in mesh.diffs.values() if absent.profile.wants(d.q)]
    assert {d.diff_id for d in missing} <= absent.stored
    assert sum(mesh.sends.values()) == sends
