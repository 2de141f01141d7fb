"""Bicycle that rights itself.

Nobody steers; it is pushed to one side, and seen in travelling. The benchmark bicycle of Meijaard
and others (Proc. R. Soc. A 463, 2007) weaves and falls at 3 m/s, and rights itself at 5 m/s.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.systems import circle

jax.config.update("jax_enable_x64", True)

X, Y, Z = jnp.eye(3)
RADII = jnp.array([[0.3], [0.35]])  # of the wheels [m]
# Rear wheel, frame with rider, fork, front wheel: places when upright [m], masses [kg], moments
# of inertia about x, y, z and the product xz [kg m^2].
PLACES = jnp.array([[0.0, 0.0, 0.3], [0.3, 0.0, 0.9], [0.9, 0.0, 0.7], [1.02, 0.0, 0.35]])
MASSES = jnp.array([2.0, 85.0, 4.0, 3.0])
MOMENTS = jnp.array(
    [[0.0603, 0.12, 0.0603], [9.2, 11.0, 2.8], [0.05892, 0.06, 0.00708], [0.1405, 0.28, 0.1405]]
)
PRODUCTS = jnp.array([0.0, -2.4, 0.00756, 0.0])
HEAD, AXIS = 1.1 * X, jnp.cos(jnp.pi / 10) * Z - jnp.sin(jnp.pi / 10) * X  # of the steering


def turn(angle, axis):
    cross = jnp.cross(jnp.eye(3), axis)
    return jnp.eye(3) + jnp.sin(angle) * cross + (1 - jnp.cos(angle)) * cross @ cross


def frames(q):
    """Rotations of the frame, by yaw, roll and pitch, and of the fork."""
    frame = turn(q[3], Z) @ turn(q[4], X) @ turn(q[5], Y)
    return jnp.stack([frame, frame @ turn(q[6], AXIS)])


def moved(q, behind, ahead):
    """Where points of the frame and points of the fork are, given where they are upright."""
    frame, fork = frames(q)
    head = q[:3] + frame @ (HEAD - PLACES[0])
    return jnp.concatenate([q[:3] + (behind - PLACES[0]) @ frame.T, head + (ahead - HEAD) @ fork.T])


def centres(q):
    return moved(q, PLACES[:2], PLACES[2:])


def spins(q, v):
    """Angular velocities of the four bodies, in the axes of frame and fork."""
    turned, rates = jax.jvp(frames, (q,), (v,))
    frame, fork = (jnp.stack([w[2, 1], w[0, 2], w[1, 0]]) for w in turned.mT @ rates)
    return jnp.stack([frame + v[7] * Y, frame, fork, fork + v[8] * Y])


def down(q):
    """From the wheels' centres to the ground."""
    axles = frames(q) @ Y
    return RADII * (axles * axles[:, 2:] - Z) / jnp.sqrt(1 - axles[:, 2:] ** 2)


class Bicycle(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        _, rates = jax.jvp(centres, (q,), (v,))
        w = spins(q, v)
        turning = jnp.sum(MOMENTS * w**2) + 2 * PRODUCTS @ (w[:, 0] * w[:, 2])
        return 0.5 * (MASSES @ jnp.sum(rates**2, axis=1) + turning)

    def potential_energy(self, t, q):
        return 9.81 * MASSES @ centres(q)[:, 2]

    def position_constraints(self, t, q):
        return (centres(q)[::3] + down(q))[:, 2]

    def velocity_constraints(self, t, q, v):
        _, rates = jax.jvp(centres, (q,), (v,))
        w = jnp.einsum("ijk,ik->ij", frames(q), spins(q, v)[::3])
        return (rates[::3] + jnp.cross(w, down(q)))[:, :2].ravel()

    def points(self, t, q):
        seen = jnp.array([[0.77, 0.22], [-0.64, 0.26], [0.0, 0.94]])  # from behind and above
        behind = jnp.array([[0.0, 0.0, 0.3], [0.2, 0.0, 0.9], [0.45, 0.0, 0.25], [0.35, 0.0, 1.5]])
        ahead = jnp.array([[0.85, 0.0, 0.8], [0.8, 0.3, 1.0], [0.8, -0.3, 1.0], [1.02, 0.0, 0.35]])
        here = q[:3] * (X + Y)
        places = dict(zip("abcdefgh", (moved(q, behind, ahead) - here) @ seen, strict=True))
        for i, x in enumerate((-0.7, 0.8)):  # marks on the ground, 1.5 m apart
            x += 0.75 - q[0] % 1.5
            places |= {f"_{i}{y}": jnp.array([x, y, 0.0]) @ seen for y in (-0.4, 0.4)}
        hubs = zip((0, 1), centres(q)[::3] - here, RADII[:, 0], frames(q), strict=True)
        wheels = {f"{i}": circle(x, r, R @ X, R @ Z) @ seen for i, x, r, R in hubs}
        links = ("ab", "bc", "ca", "be", "ce", "eh", "ef", "eg", "bd")
        lines = (("_0-0.4", "_00.4"), ("_1-0.4", "_10.4"))
        return jaxdae.Points(places, tuple(map(tuple, links)), lines, outlines=wheels)


def pushed(speed, end):
    v = jnp.zeros(9).at[jnp.array([0, 1, 4])].set(jnp.array([speed, 0.15, -0.5]))
    v = v.at[7:].set(speed / RADII[:, 0])
    start = jaxdae.State(jnp.zeros(9).at[2].set(0.3), v)
    gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
    return jaxdae.simulate(Bicycle(), gains, start, t1=end)


film({"3 m/s": pushed(3.0, 1.75), "5 m/s": pushed(5.0, 3.0)}, "bicycle.gif")
