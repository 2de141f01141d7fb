"""Degrees of freedom by count and by rank, against mechanisms whose mobility is known."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.bricard import bricard
from helpers.dependent_mechanisms import Bennett, Platform
from helpers.rhombus import Rhombus
from jaxdae.analysis import mobility
from jaxdae.diagnosis.findings import NearSingularity
from jaxdae.models import FourBar
from jaxdae.multibody import Body, Connection, Hinge, Multibody, Weld
from jaxdae.results.mobility_along import MobilityAlong
from jaxdae.solvers import RK4

UP = (0.0, 0.0, 1.0)


def parallelogram(axes="xyz") -> Multibody:
    """Two cranks of length 1 and a coupler of length 2, in the plane of x and y."""
    return Multibody(
        [
            Body("crank", Hinge("a", UP), mass=1.0, centre=(0.5, 0, 0), inertia=(0, 0.1, 0.1)),
            Body("coupler", Hinge("b", UP), "crank", (1, 0, 0), mass=1.0, inertia=(0, 0.3, 0.3)),
            Body("rocker", Hinge("c", UP), position=(2, 0, 0), mass=1.0, inertia=(0, 0.1, 0.1)),
        ],
        [Connection("pin", "coupler", "rocker", (2, 0, 0), (1, 0, 0), axes)],
        gravity=(0.0, -9.81, 0.0),
    )


def test_bricards_linkage_moves_against_the_count():
    """Five angles and a hinge that closes: 5 - 5 = 0 by count; it has one degree of freedom."""
    system = bricard()
    found = mobility(system, system.start())
    assert (found.counted, found.degrees_of_freedom, found.rank, found.redundant) == (0, 1, 4, 1)
    assert found.regular
    (one,) = found.dependences
    jac = dict(zip(system.labels().constraints, _jacobian(system, system.start().q), strict=True))
    np.testing.assert_allclose(
        jac[one.constraint], sum(c * jac[k] for k, c in one.combination.items()), atol=1e-12
    )
    assert str(found).startswith(
        "degrees of freedom: 1 by rank, 0 by count (5 velocities, 5 constraints, 4 independent)\n"
        f"redundant: {one}\n"
    )


def _jacobian(system, q):
    return np.asarray(jax.jacfwd(lambda q: system.position_constraints(0.0, q))(q))


def test_a_planar_linkage_in_space_has_an_equation_that_constrains_nothing():
    q, v = jnp.array([1.0, -1.0, 1.0]), jnp.zeros(3)
    found = mobility(parallelogram(), jaxdae.State(q, v))
    assert (found.counted, found.degrees_of_freedom) == (0, 1)
    assert [str(x) for x in found.dependences] == ["'pin z' constrains nothing"]
    found = mobility(parallelogram("xy"), jaxdae.State(q, v))
    assert (found.counted, found.degrees_of_freedom, found.dependences) == (1, 1, ())


@pytest.mark.parametrize(
    ("system", "expected"), [(Platform(), (7, 7, 6)), (Bennett(), (12, 14, 11))]
)
def test_mechanisms_of_theory(system, expected):
    """A platform on parallel cranks and Bennett's linkage: both are off the constraints a little.

    Redundant rows are independent there, and are named all the same.
    """
    q = jnp.asarray(system.curve(jnp.asarray(0.8)))
    state = jaxdae.State(q + 1e-5 * jnp.cos(jnp.arange(q.size)), jnp.zeros(q.size))
    found = mobility(system, state)
    assert (found.velocities, found.constraints, found.rank) == expected
    assert found.degrees_of_freedom == 1
    assert len(found.dependences) == found.redundant
    names = {x.constraint for x in found.dependences}
    assert all(not names & {*x.combination} for x in found.dependences)


def test_units_of_constraints_do_not_matter():
    """The factor of a row in millimetres is that of the row in metres, scaled."""

    class InMillimetres(Platform):
        def position_constraints(self, t, q):
            return super().position_constraints(t, q) * jnp.array([1e3, 1, 1, 1, 1, 1, 1e-3])

    q = Platform().curve(jnp.asarray(0.8))
    state = jaxdae.State(q, jnp.zeros(7))
    jac = _jacobian(InMillimetres(), q)
    names = [*InMillimetres().labels().constraints]
    (one,) = mobility(InMillimetres(), state).dependences
    row = sum(c * jac[names.index(k)] for k, c in one.combination.items())
    np.testing.assert_allclose(jac[names.index(one.constraint)], row, rtol=1e-9, atol=1e-9)


def test_a_singular_position_is_said_to_be_one():
    """A parallelogram folded flat: for an instant it has a second degree of freedom."""
    q, v = Rhombus.parallelogram(0.0, 0.0)
    found = mobility(Rhombus(), jaxdae.State(q, v))
    assert (found.degrees_of_freedom, found.regular) == (2, False)
    assert "singular position: next to it the rank is larger" in str(found)


def test_without_constraints_and_without_freedom():
    rod = Body("rod", Hinge("angle"), mass=1.0, inertia=(1.0, 1.0, 1.0))
    free = Multibody([rod])
    found = mobility(free, free.start())
    assert (found.counted, found.degrees_of_freedom, found.ratio) == (1, 1, np.inf)
    assert str(found) == (
        "degrees of freedom: 1 by rank, 1 by count (1 velocities, 0 constraints, 0 independent)"
    )
    fixed = Multibody([rod], [Weld("weld", "rod")])
    found = mobility(fixed, fixed.start())
    assert (found.counted, found.degrees_of_freedom, found.redundant) == (-5, 0, 5)


def test_velocity_constraints_count():
    class Skate(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ v

        def velocity_constraints(self, t, q, v):
            across = v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2])
            return jnp.stack([across, 2.0 * across])

        def labels(self):
            return jaxdae.Labels(constraints=("blade", "again"))

    found = mobility(Skate(), jaxdae.State(jnp.array([0.1, 0.2, 0.3]), jnp.zeros(3)))
    assert (found.counted, found.degrees_of_freedom) == (1, 2)
    assert {x.constraint for x in found.dependences} <= {"blade", "again"}


def test_names_need_numbers():
    system = parallelogram()
    traced = jax.jit(lambda s: mobility(system, s).rank)
    with pytest.raises(ValueError, match=re.escape("call it outside of jax.jit")):
        traced(system.start())


def test_what_is_said_of_a_run_that_gains_freedom_for_a_moment():
    ratio = np.array([0.5, 1e-4, 0.6])
    found = MobilityAlong(
        np.array([0.0, 0.1, 0.2]), np.array([2, 1, 2]), np.array([1, 2, 1]), ratio,
        (NearSingularity(0.1, 1e-4),),
    )  # fmt: skip
    assert str(found).splitlines() == [
        "degrees of freedom: 1, up to 2 at t = 0.1 s",
        "least singular value: 0.0001 of the largest, at t = 0.1 s",
        "near-singular positions: t = 0.1 s",
    ]


@pytest.mark.slow
def test_a_run_says_where_it_came_near_a_singular_position():
    """A parallelogram swings through the line in which its bars fold flat: the time of angle 0."""
    system, law = parallelogram("xy"), jaxdae.Multipliers(solve=jaxdae.SingularityRobust())
    start = jaxdae.State(jnp.array([0.2, -0.2, 0.2]), jnp.array([-1.0, 1.0, -1.0]))
    run = jaxdae.simulate(system, law, start, t1=0.3, dt=0.005, solver=RK4(), backend="plain")
    found, angle = run.mobility, np.asarray(run.q[:, 0])
    crossed = np.interp(0.0, -angle, np.asarray(run.ts))
    (near,) = found.near_singularities
    assert abs(near.time - crossed) < 1e-3  # linear between rows 5 ms apart
    assert (found.degrees_of_freedom == 1).all()
    assert found.ratio.min() < 0.1 * found.ratio[0]
    assert str(found).startswith("degrees of freedom: 1\nleast singular value: ")
    assert f"near-singular positions: t = {near.time:.6g} s" in str(found)


def test_the_mobility_of_a_batch_is_that_of_each_member():
    four_bar = FourBar()
    q, _ = four_bar.start()

    def one(scale):
        state = jaxdae.State(q, jnp.zeros(3))
        law = jaxdae.Multipliers(jaxdae.Baumgarte(scale, scale))
        return jaxdae.simulate(
            four_bar, law, state, t1=0.02, dt=0.01, solver=RK4(), backend="plain"
        )

    runs = jax.vmap(one)(jnp.array([1.0, 2.0]))
    with pytest.raises(ValueError, match=re.escape("choose a member of the batch, run[i]")):
        _ = runs.mobility
    assert (runs[1].mobility.rank == 2).all()
