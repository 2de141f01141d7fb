"""Kernels are made anew where JAX traces anew, and for values that only Python takes for equal."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.compiled import jit
from jaxdae.memory import kinds, Memory

# Squares of frequencies, changed between runs.
STIFFNESS = 1.0


class Oscillator(jaxdae.System):
    """`q'' = -k q`, where `k` comes from a global value, a method, and the kind of a setting.

    At `q = 1` and rest the energy is `k / 2`.
    """

    setting: object = eqx.field(static=True, default=1)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def factor(self):
        return 1.0

    def potential_energy(self, t, q):
        kind = {int: 1.0, float: 4.0, bool: 9.0}[type(self.setting)]
        return STIFFNESS * self.factor() * kind * 0.5 * q @ q


def simulated(setting: object = 1) -> jaxdae.Trajectory:
    state = jaxdae.State(jnp.array([1.0]), jnp.array([0.0]))
    run = jaxdae.simulate(Oscillator(setting), jaxdae.Multipliers(), state, t1=1.0, dt=0.01)
    assert run.why_not_native is None
    return run


def end(setting: object = 1) -> float:
    """`q(1)` after `q(0) = 1` at rest, which is the cosine of the frequency."""
    return float(simulated(setting).q[-1, 0])


def is_cosine(found: float, frequency: float) -> bool:
    """A hundred steps of an order of five at least."""
    return found == pytest.approx(np.cos(frequency), abs=1e-9)


@pytest.mark.slow
def test_what_jax_forgets_is_forgotten(monkeypatch):
    assert is_cosine(end(), 1.0)
    monkeypatch.setitem(globals(), "STIFFNESS", 4.0)
    jax.clear_caches()
    assert is_cosine(end(), 2.0)
    monkeypatch.setattr(Oscillator, "factor", lambda self: 2.25)
    jax.clear_caches()
    assert is_cosine(end(), 3.0)


class Springs(Oscillator):
    """One whose stiffness is in a list, which can be changed in its place."""

    stiffness: list[float] = eqx.field(default_factory=lambda: [1.0])

    def factor(self):
        return self.stiffness[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Oscillator, Springs])
def test_the_very_same_objects_are_not_always_the_same(kind, monkeypatch):
    """Nothing is looked at in a third call with them, unless it can have changed."""
    jax.clear_caches()  # of what the test before had changed
    system, state = kind(), jaxdae.State(jnp.array([1.0]), jnp.array([0.0]))
    law = jaxdae.Multipliers()
    final = lambda: float(jaxdae.simulate(system, law, state, t1=1.0, dt=0.01).q[-1, 0])  # noqa: E731
    assert all(is_cosine(final(), 1.0) for _ in range(3))
    if kind is Springs:
        for frequency in (2.0, 3.0, 1.0):
            system.stiffness[0] = frequency**2
            assert is_cosine(final(), frequency)
    monkeypatch.setitem(globals(), "STIFFNESS", 4.0)
    jax.clear_caches()
    assert is_cosine(final(), 2.0)


@pytest.mark.slow
def test_values_of_other_kinds_are_other_systems():
    """Runs, derived quantities and linear analysis, each compiled once for each kind."""
    jax.clear_caches()  # of the method and the global value that the test before had changed
    for setting, frequency in ((1, 1.0), (1.0, 2.0), (True, 3.0), (1, 1.0)):
        run = simulated(setting)
        assert is_cosine(float(run.q[-1, 0]), frequency)
        # A few roundings of numbers of size one.
        np.testing.assert_allclose(run.energy[0], frequency**2 / 2, rtol=1e-15)
        rest = jaxdae.equilibrium(Oscillator(setting), q=jnp.zeros(1))
        np.testing.assert_allclose(
            jaxdae.linearize(Oscillator(setting), rest).A[1, 0], -(frequency**2), rtol=1e-15
        )


def test_functions_are_compiled_apart_for_values_that_python_takes_for_equal():
    """Positional or named, in any pytree; other calls with the same compile nothing."""
    traced = []

    @jit
    def kind(x, *, setting):
        traced.append(setting)
        return x * {int: 1.0, float: 4.0, bool: 9.0}[type(setting[0])]

    for _ in range(2):
        found = [float(kind(jnp.ones(()), setting=(x,))) for x in (1, 1.0, True)]
        assert found == [1.0, 4.0, 9.0]
    # NumPy's arrays and JAX's are of one kind, as they are for JAX.
    assert float(kind(np.ones(()), setting=(1,))) == 1.0
    assert len(traced) == 3
    assert kind.__name__ == "kind"


def test_kinds_are_what_equality_does_not_compare():
    pairs = [(1, True), (1, 1.0), ((1,), [1]), ({"a": 1}, {"a": 1.0}), (0.0, -0.0)]
    pairs += [({1: "a"}, {1.0: "a"}), (frozenset([1]), frozenset([1.0]))]
    for one, other in pairs:
        assert kinds(one) != kinds(other)
        assert kinds(Oscillator(one)) != kinds(Oscillator(other))
    # Numbers that are compared by their values, and arrays, known or traced.
    assert kinds(2.0) == kinds(3.0)
    traced = []
    jax.jit(lambda x: traced.append(kinds(x)))(jnp.ones(2))
    assert traced == [kinds(jnp.zeros(1))]


def test_a_memory_keeps_the_last_results_and_makes_what_has_no_key():
    memory, made = Memory(2), []

    def get(key, declared=None):
        return memory.get((key,), declared, lambda: made.append(key) or len(made))

    assert [get("a"), get("b"), get("a"), get("c"), get("a"), get("b")] == [1, 2, 1, 3, 1, 4]
    assert len(memory) == 2
    assert get([]) == 5  # a list has no hash
    assert get([]) == 6
    assert get("b", 1) != get("b", True)
    with jax.disable_jit():
        known = get("b", 1)
        assert get("b", 1) == known
    jax.clear_caches()
    assert get("b", 1) != known
