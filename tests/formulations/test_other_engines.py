"""Gains of other engines: digits of MuJoCo, steps of ODE, Drake and Kamino, and the way back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, Penalty, State
from jaxdae.formulations import (
    Corrector,
    DirectSolRef,
    HolonomicSpring,
    Impedance,
    read_solref,
    SolRef,
    Spring,
    StepLaw,
)

ROUND_OFF = 1e-12  # relative, of some ten operations on numbers of full precision


class Slide(jaxdae.System):
    """A mass on a vertical slide whose only coordinate is to be zero."""

    mass: float = 1.3
    weight: float = 0.0

    def kinetic_energy(self, t, q, v):  # noqa: ARG002
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):  # noqa: ARG002
        return -self.mass * self.weight * q[0]

    def position_constraints(self, t, q):  # noqa: ARG002
        return q


def acceleration(formulation, system, q, v):
    state = State(jnp.array([q]), jnp.array([v]))
    return float(formulation.vector_field(system, 0.0, state, None).v[0])


# From mj_forward of MuJoCo 4.0.0: efc_aref and qacc of a slide of 1.3 kg under an equality, with
# refsafe off; the script of benchmarks/other_engines.py prints them.
MUJOCO = [
    ("0.02 1", "", 5e-4, 0.3, -9.81, -32.860110803324105, -31.1313524930748),
    ("0.05 0.7", "0.8 0.97 0.002 0.3 3", -1.5e-3, 0.3, -9.81, -11.115828204043474,
     -11.06957456982627),
    ("-2500 -80", "0.9 0.95 0.001 0.4 1.5", 2e-4, -0.2, -9.81, 16.339572815616698,
     13.909520936685574),
    ("-2500 -80", "0.9 0.95 0.001 0.4 1.5", 0.2, -0.2, 2.0, -509.47368421052624, -483.9),
]  # fmt: skip


@pytest.mark.parametrize(("solref", "solimp", "r", "v", "weight", "aref", "qacc"), MUJOCO)
def test_solref_is_that_of_mujoco(solref, solimp, r, v, weight, aref, qacc):
    """The reference acceleration, and the acceleration of the soft constraint as `Penalty`."""
    law: Any = read_solref(solref.split(), solimp.split())
    gains = law.reference(r)
    wanted = gains(0.0, None, None, jnp.array([r]), jnp.array([v]))
    np.testing.assert_allclose(wanted, [aref], rtol=1e-11)  # MuJoCo's spline by another formula
    system = Slide(weight=weight)
    found = acceleration(law.penalty(1 / system.mass, r), system, r, v)
    assert found == pytest.approx(qacc, rel=1e-11)
    free = acceleration(law.penalty(1 / system.mass, r), Slide(), r, v)
    assert free == pytest.approx(
        acceleration(Multipliers(law.effective(r)), Slide(), r, v), rel=ROUND_OFF
    )


def test_a_constant_impedance_leaves_the_time_constant_as_it_is_written():
    gains: Any = SolRef(0.05, 0.7, impedance=Impedance(0.9, 0.9)).effective()
    np.testing.assert_allclose(
        [gains.K_D, gains.K_P], [2 / 0.05, 1 / (0.05 * 0.7) ** 2], rtol=ROUND_OFF
    )


def test_mujoco_raises_short_time_constants_to_two_steps():
    def as_run(timeconst) -> Any:
        return SolRef(timeconst).as_run(0.01).timeconst

    np.testing.assert_allclose(as_run(0.005), 0.02)
    np.testing.assert_allclose(as_run(0.05), 0.05)


GAINS: Any = Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 40.0]))


@pytest.mark.parametrize(
    "back",
    [
        lambda g: SolRef.of(g, r=3e-4).reference(3e-4),
        lambda g: DirectSolRef.of(g, Impedance(0.5, 0.99, 0.1, 0.3, 3.0), 0.02).reference(0.02),
        lambda g: Corrector.of(g).stabilization(),
        lambda g: Spring.of(g, jnp.array([0.5, 3.0])).effective(jnp.array([0.5, 3.0])),
    ],
)
def test_there_and_back(back):
    result: Any = back(GAINS)
    np.testing.assert_allclose(result.K_D, GAINS.K_D, rtol=ROUND_OFF)
    np.testing.assert_allclose(result.K_P, GAINS.K_P, rtol=ROUND_OFF)


def semi_implicit_euler(formulation, system, q, v, h, steps):
    for _ in range(steps):
        v = v + h * acceleration(formulation, system, q, v)
        q = q + h * v
    return q, v


def implicit_spring(k, c, system, q, v, h, steps):
    """`m (v_1 - v_0) / h = m g - k (q_0 + h v_1) - c v_1`, what ODE and SAP solve."""
    m, g = system.mass, system.weight
    for _ in range(steps):
        v = (v + h * g - h * k * q / m) / (1 + h * (h * k + c) / m)
        q = q + h * v
    return q, v


def test_a_step_of_ode_is_a_semi_implicit_step_of_the_penalty_form():
    """Spring and damper, ERP and CFM of its manual, and ours: three ways to the same motion."""
    system, h = Slide(weight=-9.81), 0.02
    law: Any = StepLaw.of_spring(Spring(700.0, 30.0), h)
    wanted = implicit_spring(700.0, 30.0, system, 0.01, -0.2, h, 5)
    found = semi_implicit_euler(law.formulation(), system, 0.01, -0.2, h, 5)
    np.testing.assert_allclose(found, wanted, rtol=1e-11)
    spring: Any = law.spring()
    np.testing.assert_allclose([spring.stiffness, spring.damping], [700.0, 30.0], rtol=ROUND_OFF)


def test_a_rigid_law_leaves_the_rest_of_the_violation_and_no_rate_of_its_own():
    law, h = StepLaw.of_kamino(0.2, 0.01), 0.01
    assert isinstance(law.formulation(), Multipliers)
    q, v = semi_implicit_euler(law.formulation(), Slide(weight=5.0), 1.0, 7.0, h, 3)
    np.testing.assert_allclose([q, v], [0.8**3, -0.2 * 0.8**2 / h], rtol=ROUND_OFF)
    np.testing.assert_allclose(jnp.exp(-law.rate() * 3 * h), 0.8**3, rtol=ROUND_OFF)
    again: Any = StepLaw.of(law.stabilization(), h)
    np.testing.assert_allclose(again.erp, 0.2, rtol=ROUND_OFF)
    np.testing.assert_allclose(StepLaw.of_rate(law.rate(), h).erp, 0.2, rtol=ROUND_OFF)


def sap(k, tau, beta, a, h, v_free, g):
    """Impulse of one constraint by the class comment of Drake's SapHolonomicConstraint."""
    regularization, least = 1 / (h * (h + tau) * k), beta**2 / (4 * np.pi**2) * a
    tau = h if regularization < least else tau
    bias = -g / (h + tau)
    regularization = max(regularization, least)
    # v = v_free + a y, y = -(v - bias) / R
    return (regularization * v_free + a * bias) / (regularization + a)


@pytest.mark.parametrize("k", [500.0, 1e9])
def test_a_step_of_drake_is_a_semi_implicit_step_of_the_penalty_form(k):
    """A spring that the step resolves, and one that it does not (near-rigid)."""
    system, h = Slide(weight=-9.81), 0.01
    spring = HolonomicSpring(k, 0.03)
    assert spring.near_rigid(h, 1 / system.mass) == (k > 1e6)
    q, v, a = 0.02, 0.3, 1 / system.mass
    wanted = sap(k, 0.03, 0.1, a, h, v + h * system.weight, q)
    law: Any = spring.law(h, a)
    _, found = semi_implicit_euler(law.formulation(), system, q, v, h, 1)
    assert found == pytest.approx(wanted, rel=1e-10)
    if k < 1e6:
        again: Any = HolonomicSpring.of(law)
        np.testing.assert_allclose([again.stiffness, again.relaxation_time], [k, 0.03], rtol=1e-11)


def test_numbers_of_other_engines_can_be_tuned():
    """Derivatives reach them, several at once, and in single precision."""

    def stiffness(timeconst) -> Any:
        return SolRef(timeconst, jnp.float32(1.0)).effective().K_P

    many = jnp.array([0.02, 0.05], jnp.float32)
    slopes: Any = jax.vmap(jax.grad(stiffness))(many)
    values: Any = jax.vmap(stiffness)(many)
    assert slopes.dtype == jnp.float32
    np.testing.assert_allclose(slopes, -2 * values / many, rtol=1e-5)  # K_P is a power of it


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read_solref((0.02, -1)), r"give two positive numbers .* or two negative ones"),
        (lambda: read_solref((0.02,)), r"solref has 1 numbers and solimp 0; needed are 2"),
        (lambda: SolRef(-0.02), r"timeconst must be positive definite"),
        (lambda: DirectSolRef(2500.0, jnp.nan), r"damping is not finite"),
        (lambda: Impedance(1.0), r"Impedance: start is 1.0, must be between 0 and 1"),
        (lambda: Impedance(power=0.5), r"power is 0.5, must be at least 1"),
        (lambda: SolRef().penalty(0.0), r"inverse_inertia must be positive definite"),
        (lambda: StepLaw(1.2, 0.01), r"erp is 1.2, must be above 0 and at most 1"),
        (lambda: StepLaw(0.2, 0.01, -1.0), r"cfm is -1.0, must not be negative"),
        (lambda: StepLaw.of(GAINS, 0.01), r"K_D dt is \[0.2 0.1\]; engines that step velocities"),
        (lambda: HolonomicSpring(1.0, -1.0), r"relaxation_time is -1.0, must not be negative"),
        (lambda: HolonomicSpring.of(StepLaw(0.2, 0.01)), r"give a law with a positive cfm"),
        (lambda: Corrector.of(Baumgarte(K_D=np.eye(2), K_P=np.eye(2))), r"the gains are matrices"),
        (lambda: Corrector.of(Baumgarte(Gamma=1.0)), r"are no gains of position constraints"),
    ],
)
def test_what_has_no_meaning_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_soft_law_is_a_penalty_with_the_weight_of_its_step():
    law: Any = StepLaw(0.3, 0.01, 2e-4)
    formulation = law.formulation()
    assert isinstance(formulation, Penalty)
    assert float(jnp.asarray(formulation.alpha)) == pytest.approx(50.0, rel=ROUND_OFF)
