"""Mechanisms at random: what is built closes, moves and agrees with others; records and counts."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import assemble, AssemblyError, Multibody

DATA = Path(__file__).parents[2] / "docs" / "data"


@pytest.fixture(scope="module")
def random_mechanisms(experiment):
    return experiment("random_mechanisms")


def test_a_mechanism_is_the_same_every_time_and_a_draw_compiles_nothing_anew(random_mechanisms):
    one, same, other = (random_mechanisms.mechanism(9, x) for x in (1, 1, 2))
    np.testing.assert_array_equal(one.guess, same.guess)
    assert (one.guess != other.guess).all()
    assert eqx_structure(one.system) == eqx_structure(other.system)


def eqx_structure(system):

    leaves, structure = jax.tree.flatten(system)
    return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]


@pytest.mark.parametrize("kind", [0, 12])
def test_trees_accelerate_as_those_of_mujoco(random_mechanisms, kind):
    """In a plane, and in space on balls, with springs and dampers of joints."""
    for draw in range(6):
        assert random_mechanisms.beside_mujoco(kind, draw) < random_mechanisms.AGREEMENT


def test_screws_are_not_compared_with_mujoco(random_mechanisms):
    assert random_mechanisms.beside_mujoco(1, 0) is None


def test_a_dozen_loops_close_as_they_were_built(random_mechanisms):
    """From rough guesses; with velocities that satisfy the constraints."""
    for draw in range(12):
        made = random_mechanisms.mechanism(8, draw)
        closed = assemble(made.system, made.guess)
        state = jaxdae.consistent_state(made.system, closed.q, made.speeds)
        np.testing.assert_allclose(made.system.position_constraints(0.0, state.q), 0.0, atol=1e-12)
        assert np.abs(state.v).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 8])
def test_what_is_simulated_keeps_its_constraints_and_the_balance_of_power(random_mechanisms, kind):
    for draw in range(12):
        found = random_mechanisms.examined(kind, draw)
        assert "silent" not in found
        assert found["residual"] < random_mechanisms.RESIDUAL
        assert found["balance"] < random_mechanisms.BALANCE
        assert found["moved"] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", [6, 14])
def test_bodies_move_the_same_in_absolute_coordinates(random_mechanisms, experiment, kind):
    """A free body in place of each, and closing joints in place of joints."""
    absolute = experiment("absolute_coordinates")
    made = random_mechanisms.mechanism(kind, 0)
    assert absolute.is_suited(made.system)
    state = assemble(made.system, made.guess)
    state = jaxdae.consistent_state(made.system, state.q, made.speeds)
    assert absolute.difference(made.system, state) < random_mechanisms.AGREEMENT
    if kind == 14:
        assert random_mechanisms.possible(made.system)
        # Some hundred steps of a tolerance of 1e-10 each, in both.
        assert absolute.difference_in_motion(made.system, state, 0.5) < 1e-7


def test_what_refers_to_joints_has_no_absolute_coordinates(random_mechanisms, experiment):
    absolute = experiment("absolute_coordinates")
    for kind in (11, 17 + 9, 31):  # springs of joints, a prescribed joint, a coupling
        assert not absolute.is_suited(random_mechanisms.mechanism(kind, 0).system)
    twice = random_mechanisms.mechanism(0, 0).system.bodies[0].joints * 3
    body = jaxdae.multibody.Body(
        "b", [jaxdae.multibody.Hinge(f"h{i}") for i, _ in enumerate(twice)]
    )
    with pytest.raises(ValueError, match="the body 'b' has joints in a row that no closing joint"):
        absolute.absolute(Multibody([body]))


def test_records_are_kept_and_one_that_ended_the_process_is_known(
    random_mechanisms, tmp_path, monkeypatch
):
    def examined(kind, draw):
        if draw == 2:
            raise RuntimeError("something else")
        if draw == 3:
            return {"kind": kind, "draw": draw, "family": "f", "refused": "open", "why": "no"}
        numbers = {"residual": 1e-9, "balance": 2e-9, "warnings": []}
        return {"kind": kind, "draw": draw, "family": "f"} | numbers

    monkeypatch.setattr(random_mechanisms, "KINDS", (("f", ()),))
    monkeypatch.setattr(random_mechanisms, "examined", examined)
    (tmp_path / "begun-0.jsonl").write_text('{"kind": 0, "draw": 1}\n')
    for _ in range(2):
        random_mechanisms.made(tmp_path, 4, 0, 1)
    found = random_mechanisms.records(tmp_path / "records-0.jsonl")
    assert [x["draw"] for x in found] == [1, 0, 2, 3]
    assert found[0]["unexplained"] == "the process ended"
    assert found[2]["unexplained"] == "RuntimeError: something else"
    beside = [{"mujoco": None}, {"mujoco": 1e-15, "absolute": 2e-15}]
    (row,) = (result := random_mechanisms.summary(found, beside))["families"]
    assert (row["number"], row["moved"], row["open"], row["unexplained"]) == (4, 1, 1, 2)
    assert (row["residual"], row["balance"], row["silent"]) == (1e-9, 2e-9, 0)
    assert len(result["said"]) == 3
    assert result["compared"]["mujoco"] == {"number": 1, "worst": 1e-15}


@pytest.mark.slow
def test_a_mechanism_that_does_not_close_is_refused_by_how_much(random_mechanisms):
    made = random_mechanisms.mechanism(10, 7)
    assert not made.closable
    with pytest.raises(AssemblyError, match=r"loop 'c0' is open by 0\.\d+ m and"):
        assemble(made.system, made.guess)
    found = random_mechanisms.examined(10, 7)
    assert found["refused"] == "open"
    assert "is open by" in found["why"]


def test_claims_are_held_against_the_numbers(random_mechanisms):
    found = json.loads((DATA / "random_mechanisms.json").read_text())
    assert all(x.holds for x in random_mechanisms.claims(found))
    for field in ("silent", "unexplained"):
        worse = found | {"families": [x | {field: 1} for x in found["families"]]}
        holds = [x.holds for x in random_mechanisms.claims(worse)]
        assert holds == [field == "silent", field != "silent"]
