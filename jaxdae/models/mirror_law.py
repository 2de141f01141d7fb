r"""The control law of the adaptive mirror as the paper prints it, and as it must be.

With `x = (phi, omega, tau, z)` and `s^i` the derivatives of `s(t)` from `s^1 = s`, the derivatives
of the program are `g^k = g_i^k(x) s^i` (and `l c` in the first), and the control solves `g^5 = Phi`
[Mukharlyamov2019, eqs. 5.4-5.7]. Coefficients are named as there: `g_14^4` is the derivative of
`g_1^4` by `x^4`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.mirror import AdaptiveMirror


class Coefficient(NamedTuple):
    """A coefficient of the paper's law.

    Args:
        printed: its value as printed.
        correct: its value by differentiation, by hand.
        slip: what is wrong in print; empty where nothing is.
    """

    printed: Float[Array, ""]
    correct: Float[Array, ""]
    slip: str = ""


def coefficients(mirror: AdaptiveMirror, x: Float[Array, " 4"]) -> dict[str, Coefficient]:
    """Every coefficient printed in [Mukharlyamov2019, section 5], at a state.

    Args:
        mirror: the system.
        x: angle, angular velocity, torque, rate of the torque, shape (4,).

    Returns:
        From names such as `g_14^4` to `Coefficient`.
    """
    omega, torque, z = x[1], x[2], x[3]
    k_phi, k_m, _, _, _ = constants(mirror)
    c, sin, cos = mirror.target, jnp.sin(x[0]), jnp.cos(x[0])
    sin2, cos2 = jnp.sin(2 * x[0]), jnp.cos(2 * x[0])
    g13 = c * (2 * omega**2 * cos - k_phi * sin2 + 2 * k_m * torque * sin)
    g14 = 2 * c * (k_phi * omega - omega**3 * sin + k_m * (omega * torque * cos + z * sin))
    weight = k_phi * (1 + 2 * cos2)
    right14 = 2 * c * (k_m * (3 * omega * torque * cos + z * sin) - omega**3 * sin - weight * omega)
    right111 = (
        (k_m * z - omega**3) * cos - 3 * omega * k_m * torque * sin + 4 * k_phi * omega * sin2
    )
    right21 = 6 * c * (k_m * torque * cos - omega**2 * sin - k_phi * cos2)
    plain = {
        "g_1^1": mirror.length - 2 * c * cos,
        "g_1^2": 2 * c * omega * sin,
        "g_1^3": g13,
        "g_2^3": 4 * c * omega * sin,
        "g_2^4": 3 * g13,
        "g_3^4": 6 * c * omega * sin,
        "g_14^4": 2 * c * k_m * sin,
        "g_24^4": jnp.zeros_like(sin),
        "g_31^4": 6 * c * omega * cos,
        "g_32^4": 6 * c * sin,
        "g_41^4": 2 * c * sin,
    }
    return {name: Coefficient(value, value) for name, value in plain.items()} | {
        "g_1^4": Coefficient(
            g14,
            right14,
            "k_phi omega for -k_phi omega (1 + 2 cos 2phi); k_M omega M cos phi for 3 of it",
        ),
        "g_11^4": Coefficient(
            2 * c * ((k_m * z - omega**3) * cos - omega * k_m * torque * sin),
            2 * c * right111,
            "derivative of the wrong g_1^4: factor 3 and 4 k_phi omega sin 2phi missing",
        ),
        "g_12^4": Coefficient(
            2 * c * (k_m * torque * cos + k_phi - 3 * omega**2 * sin),
            2 * c * (3 * k_m * torque * cos - weight - 3 * omega**2 * sin),
            "derivative of the wrong g_1^4",
        ),
        "g_13^4": Coefficient(
            2 * c * k_m * cos, 6 * c * k_m * omega * cos, "omega and the factor 3 missing"
        ),
        "g_21^4": Coefficient(
            6 * c * (omega**2 * sin - k_phi * cos2 + k_m * torque * cos),
            right21,
            "sign of omega^2 sin phi",
        ),
        "g_22^4": Coefficient(12 * c * omega * sin, 12 * c * omega * cos, "sin for cos"),
        "g_23^4": Coefficient(6 * c * k_m * cos, 6 * c * k_m * sin, "cos for sin"),
    }


def constants(mirror: AdaptiveMirror) -> tuple:
    """`(k_phi, k_M, k_v, k_omega, k_a / L)` of [Mukharlyamov2019, eq. 5.3]."""
    m = mirror
    back = m.torque_constant * m.back_emf_constant / (m.gear_ratio * m.inductance)
    drive = m.torque_constant / m.inductance
    return (
        m.gravity / m.length,
        1 / (m.mass * m.length**2),
        m.resistance / m.inductance,
        back,
        drive,
    )


def voltage(mirror: AdaptiveMirror, x, s, wanted, *, printed: bool = False) -> Float[Array, ""]:
    """The control law [Mukharlyamov2019, eq. 5.7].

        u = (Phi - g_j^5 s^j) / (2 c s^1 sin(phi) k_M k_a / L)

    Args:
        mirror: the system.
        x: state, shape (4,).
        s: `s(t)` and its derivatives up to the fourth, shape (5,).
        wanted: `Phi`, the fourth derivative of the program that is wanted.
        printed: with the coefficients as printed, and without `k_M` in the denominator, as printed.

    Returns:
        Voltage [V].
    """
    k_phi, k_m, k_v, k_omega, drive = constants(mirror)
    rate = jnp.stack([x[1], k_m * x[2] - k_phi * jnp.cos(x[0]), x[3], -k_v * x[3] - k_omega * x[1]])
    table = coefficients(mirror, x)
    g = {name: entry.printed if printed else entry.correct for name, entry in table.items()}
    g |= {"g_4^4": g["g_1^1"], "g_0^4": 0.0}

    def fifth(j):
        """`g_ji^4 X^i + g_{j-1}^4`."""
        terms = [g.get(f"g_{j}{i + 1}^4", 0.0) * rate[i] for i in range(4)]
        return sum(terms) + g[f"g_{j - 1}^4"]

    drift = sum(fifth(j) * s[j - 1] for j in range(1, 6))
    denominator = 2 * mirror.target * s[0] * jnp.sin(x[0]) * drive
    return (wanted - drift) / (denominator if printed else denominator * k_m)
