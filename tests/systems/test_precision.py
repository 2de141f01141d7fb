"""One precision for everything: what becomes floating point, what stays whole, what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, Penalty, simulate, State
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate
from jaxdae.systems.precision import in_dtype


class Joint(eqx.Module):
    """A part of a system."""

    length: float
    count: int = 2
    rigid: bool = True


class Linkage(jaxdae.System):
    """Numbers at every place where a declaration may have them."""

    joint: Joint
    others: tuple[Joint, ...]
    named: dict[str, Joint]
    order: int = eqx.field(static=True, default=4)

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.joint.length**2 * v @ v


def test_whole_numbers_in_fields_declared_as_float_become_floating_at_any_depth():
    """They are parameters; counts and flags decide shapes, and stay as they are."""
    system = in_dtype(Linkage(Joint(1), (Joint(2),), {"end": Joint(3)}), jnp.float32)
    for length, value in (
        (system.joint.length, 1),
        (system.others[0].length, 2),
        (system.named["end"].length, 3),
    ):
        assert isinstance(length, jax.Array | np.ndarray)
        assert length.dtype == jnp.float32
        assert length == value
    kept = (system.joint.count, system.joint.rigid, system.order)
    assert [type(x) for x in kept] == [int, bool, int]


def test_whole_numbers_as_gains_become_floating():
    """Scalars as well as lists, whatever the fields of gains are declared as."""
    formulation = Penalty(50, Baumgarte(K_D=[20, 10], K_P=[[100, 1], [1, 50]], Gamma=7))
    leaves = jax.tree.leaves(in_dtype(formulation, jnp.float64))
    assert [x.shape for x in leaves] == [(), (2,), (2, 2), ()]
    assert {str(x.dtype) for x in leaves} == {"float64"}


@pytest.mark.parametrize("lists", ["q", "v"])
def test_lists_take_the_precision_of_the_array_beside_them(lists):
    """A float32 array and a list are a state in float32."""
    array, plain = np.array([1.0, 0.0], np.float32), [0.0, 0.5]
    state = State(plain, array) if lists == "q" else State(array, plain)
    assert {str(x.dtype) for x in jax.tree.leaves(state)} == {"float32"}


@pytest.mark.slow
def test_double_precision_parameters_do_not_widen_a_single_precision_run():
    """NumPy's numbers and arrays are float64, whatever the user meant by them."""
    system = CartesianPendulum(np.float64(1.0), np.array(1.0), jnp.asarray(9.81))  # pyright: ignore[reportArgumentType]
    gains = Baumgarte([20.0], np.array([[100.0]]))  # pyright: ignore[reportArgumentType]
    state = State(np.array([1.0, 0.0], np.float32), [0.0, 0.0])
    run = simulate(system, Multipliers(gains), state, t1=0.1, dt=0.05, solver=RK4())
    values = (run.ts, run.q, run.v, run.multipliers, run.energy, run.violation)
    assert {str(x.dtype) for x in jax.tree.leaves(values)} == {"float32"}


SYSTEM = CartesianPendulum()
COMPLEX = np.array([1.0 + 0.5j, 0.0])

# where a complex number is given
COMPLEX_INPUT = {
    "state": lambda: State(COMPLEX, [0.0, 0.0]),
    "list": lambda: State([0.0, 1.0], [0.5j, 0.0]),
    "start": lambda: jaxdae.consistent_state(SYSTEM, jnp.asarray(COMPLEX), [0.0, 0.0]),
    "evaluate": lambda: evaluate(SYSTEM, 0.0, COMPLEX, jnp.zeros(2)),
    "field": lambda: in_dtype(CartesianPendulum(1 + 0.5j), jnp.float64),  # pyright: ignore[reportArgumentType]
    "array": lambda: in_dtype({"weights": COMPLEX}, jnp.float64),
}


@pytest.mark.parametrize("name", COMPLEX_INPUT)
def test_complex_numbers_are_refused_with_the_remedy(name):
    """Their imaginary part would otherwise be dropped, or fail deep inside."""
    with pytest.raises(ValueError, match=r"complex value .*are real; give its real and imaginary"):
        COMPLEX_INPUT[name]()
