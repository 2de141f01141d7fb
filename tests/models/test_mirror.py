"""Adaptive mirror against the law of reflection, inverse dynamics and the paper's formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.models.mirror import AdaptiveMirror, coefficients, constants

MIRROR = AdaptiveMirror()
# Coefficients of the paper's section 5 that are printed wrong.
SLIPS = {"g_1^4", "g_11^4", "g_12^4", "g_13^4", "g_21^4", "g_22^4", "g_23^4"}
NAMES = (
    *("g_1^1", "g_1^2", "g_1^3", "g_2^3", "g_1^4", "g_2^4", "g_3^4"),
    *(f"g_{i}{j}^4" for i in (1, 2) for j in (1, 2, 3, 4)),
    *("g_31^4", "g_32^4", "g_41^4"),
)


def flow(x, s):
    """Uncontrolled rates of `(x, s)`, the derivatives of s(t) being coordinates of their own."""
    k_phi, k_m, k_v, k_omega, _ = constants(MIRROR)
    x_dot = [x[1], k_m * x[2] - k_phi * jnp.cos(x[0]), x[3], -k_v * x[3] - k_omega * x[1]]
    return jnp.stack(x_dot), jnp.append(s[1:], 0.0)


def derivative(k):
    """`g^k(x, s)` by differentiation along the flow."""
    if k == 1:
        return lambda x, s: (
            MIRROR.length * MIRROR.target
            + (MIRROR.length - 2 * MIRROR.target * jnp.cos(x[0])) * s[0]
        )
    return lambda x, s: jax.jvp(derivative(k - 1), (x, s), flow(x, s))[1]


def exact(name, x):
    """A coefficient `g_i^k` or its derivative `g_ij^4` by x^j, from its definition."""
    lower, k = name[2:].split("^")
    s = jnp.ones(5)
    i = int(lower[0]) - 1

    def coefficient(x):
        return jax.grad(derivative(int(k)), 1)(x, s)[i]

    return coefficient(x) if len(lower) == 1 else jax.grad(coefficient)(x)[int(lower[1]) - 1]


@pytest.fixture(scope="module")
def table():
    x = jnp.array([0.7, -1.3, 2.1, 0.9])
    values = jax.jit(lambda x: {name: exact(name, x) for name in NAMES})(x)
    return values, coefficients(MIRROR, x)


@pytest.mark.slow
def test_the_papers_coefficients_are_those_of_differentiation_but_for_seven_slips(table):
    values, paper = table
    assert set(paper) == set(NAMES)
    for name, entry in paper.items():
        # sums of a few terms of order ten
        np.testing.assert_allclose(
            entry.correct, values[name], rtol=1e-12, atol=1e-12, err_msg=name
        )
    wrong = {name for name, entry in paper.items() if abs(entry.printed - values[name]) > 1e-6}
    assert wrong == SLIPS
    assert {name for name, entry in paper.items() if entry.slip} == SLIPS


def test_a_beam_from_the_source_is_reflected_to_the_target():
    """Angles of incidence and reflection about the normal, from the geometry alone."""
    for t in (0.0, 0.9, 2.2):
        phi = float(MIRROR.program_angle(t))
        a = MIRROR.length * np.array([np.cos(phi), np.sin(phi)])
        tangent = np.array([-np.sin(phi), np.cos(phi)])
        to_source = np.array([float(MIRROR.source(t)), 0.0]) - a
        to_target = np.array([MIRROR.target, 0.0]) - a
        angles = [tangent @ d / np.linalg.norm(d) for d in (to_source, to_target)]
        # The normal AD is tangent to the circle of the crank; both rays make one angle with it.
        assert angles[0] == pytest.approx(angles[1], rel=1e-12)


@pytest.mark.slow
def test_the_program_motion_is_a_motion_under_its_voltage():
    state = MIRROR.program_state(0.4)
    u = MIRROR.program_voltage(0.4)[None]
    field = jaxdae.Multipliers().vector_field(MIRROR, jnp.asarray(0.4), state, u)
    rate = jax.jvp(MIRROR.program_state, (jnp.asarray(0.4),), (jnp.ones(()),))[1]
    for a, b in zip(jax.tree.leaves(field), jax.tree.leaves(rate), strict=True):
        # third derivatives of the angle, through divisions by l, m: ten digits remain
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
