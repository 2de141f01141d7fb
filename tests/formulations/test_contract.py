"""A formulation by its four duties alone: kernels, projection and warnings find the rest."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, evaluate, Multipliers, Projected, simulate, State
from jaxdae.formulations import AbstractFormulation, Capabilities, Examination
from jaxdae.formulations.stabilization import Stabilization
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

SYSTEM = CartesianPendulum()
START = State(*SYSTEM.start())
GAINS = Baumgarte.critical(10.0)


class OneMatrix(AbstractFormulation):
    """`[[M, J^T], [J, 0]] (a, lam) = (f, s)` by elimination with pivots."""

    stabilization: Stabilization
    remark: str | None = None

    @property
    def capabilities(self):
        return Capabilities(regular_mass=False, stabilization=self.stabilization)

    @property
    def examination(self):
        return Examination(
            start=lambda system, t, state: "the start is refused" if t > 0 else None,
            stop=lambda system, t, y: "the toy stops here",
            review=lambda system, ts, ys: self.remark,
        )

    def init(self, system, t, state, like=None):
        return state

    def recover(self, system, t, y):
        return y

    def rate_and_multipliers(self, system, t, y, u):
        d = evaluate(system, t, y.q, y.v, y.w, u)
        c, n = d.jac.shape
        matrix = jnp.block([[d.mass, d.jac.T], [d.jac, jnp.zeros((c, c))]])
        wanted = self.stabilization(t, y.q, y.v, d.phi, d.phi_dot) - d.gamma
        x = jnp.linalg.solve(matrix, jnp.concatenate([d.force, wanted]))
        return State(y.v, x[:n], system.actuator_rate(t, y.q, y.v, y.w, u)), x[n:]


def run(formulation, **settings):
    return simulate(
        SYSTEM, formulation, START, **({"t1": 0.5, "dt": 0.01, "solver": RK4()} | settings)
    )


def test_duties_are_four():
    abstract = AbstractFormulation.__abstractmethods__
    assert abstract == {"capabilities", "init", "recover", "rate_and_multipliers"}
    assert not inspect.isabstract(OneMatrix)


@pytest.mark.parametrize(
    ("backend", "solver"),
    [("native", Projected(RK4())), pytest.param("plain", RK4(), marks=pytest.mark.slow)],
)
def test_it_runs_wherever_multipliers_do(backend, solver):
    runs = [run(f, backend=backend, solver=solver) for f in (OneMatrix(GAINS), Multipliers(GAINS))]
    assert runs[0].backend == backend
    # Fifty steps of one motion by two ways to solve: round-off of numbers of order ten.
    np.testing.assert_allclose(runs[0].q, runs[1].q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(runs[0].multipliers, runs[1].multipliers, rtol=0, atol=1e-11)


def test_its_gains_are_examined_and_its_parts_checked():
    with pytest.warns(RuntimeWarning, match="the step of 0.01 s is beyond the step limit"):
        run(OneMatrix(Baumgarte.critical(1e3)), t1=0.01, throw=False)
    with pytest.raises(ValueError, match="Baumgarte lacks a gain"):
        run(OneMatrix(Baumgarte(Gamma=1.0)))
    with pytest.raises(TypeError, match="stabilization is the class Baumgarte"):
        run(OneMatrix(Baumgarte))  # pyright: ignore[reportArgumentType]


def test_what_it_says_of_runs_is_passed_on():
    with pytest.warns(RuntimeWarning, match="a toy's remark"):
        run(OneMatrix(GAINS, "a toy's remark"))
    with pytest.raises(ValueError, match="the start is refused"):
        run(OneMatrix(GAINS), t0=0.1)
    with pytest.raises(jaxdae.SimulationError, match="the toy stops here"):
        run(OneMatrix(GAINS), dt=None, solver=None, max_steps=3)
