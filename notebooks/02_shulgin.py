# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stability and stabilization of equilibria in redundant coordinates
#
# E. M. Krasinskaya, A. Ya. Krasinskii, *On stability and stabilization of equilibrium of
# mechanical systems with redundant coordinates*, 2013 ("Shulgin", after M. F. Shulgin's form of
# the equations). The paper claims that
#
# 1. with constraints differentiated once, the equations of motion need no multipliers, and their
#    linearization has exactly as many zero roots as there are constraints, whatever the forces;
# 2. if all *other* roots have negative real parts, the equilibrium is asymptotically stable in
#    all coordinates: the constraints forbid the motions of the zero roots (theorem of section 5);
#    for nonholonomic constraints it is not;
# 3. linearizing the *constraint* first is right only under conditions (remark 6);
# 4. a regulator found on the simplified model of a ball on a beam stabilizes the exact one, and
#    no feedback moves the zero root (section 6): `02_shulgin_ball_beam.py`.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.analysis import (
    characteristic_matrix,
    equilibrium,
    linearize,
    linearized_constraint,
    spectrum,
)
from jaxdae.plotting import plot_roots, plot_series
from jaxdae.solvers import RK4
from jaxdae.tables import table

jax.config.update("jax_enable_x64", True)


def roots_text(roots):
    """Roots with non-negative imaginary part, for tables."""
    shown = [x for x in np.atleast_1d(roots) if x.imag >= -1e-9]
    return ", ".join(
        f"{x.real:.4g}" + (f" ± {x.imag:.4g}i" if x.imag > 1e-9 else "") for x in shown
    )


# %% [markdown]
# ## 1. Shulgin's equations
#
# Choose independent coordinates $q_I$; the rest, $q_D$, follow from the constraints.
# Differentiated once,
#
# $$
# \frac{\partial f}{\partial q_I}\dot q_I + \frac{\partial f}{\partial q_D}\dot q_D = 0
# \quad\Rightarrow\quad \dot q_D = B(q)\,\dot q_I, \qquad B = -\Bigl(\frac{\partial f}{\partial
# q_D}\Bigr)^{-1}\frac{\partial f}{\partial q_I},
# $$
#
# and with $T^*(q, \dot q_I) = T(q, \dot q_I, B\dot q_I)$
#
# $$
# \frac{d}{dt}\frac{\partial T^*}{\partial \dot q_I} - \frac{\partial T^*}{\partial q_I} -
# B^\top\frac{\partial T^*}{\partial q_D} = Q_I + B^\top Q_D, \qquad \dot q_D = B\,\dot q_I .
# $$
#
# No multipliers appear, and the constraint itself appears only in the initial values. Our first
# example is a bead on a wire, $y = \tfrac12\kappa x^2$, with a spring of stiffness $k$ on $x$,
# friction, and a constant lift.


# %%
class Bead(jaxdae.System):
    """A bead on the parabola y = curvature x^2 / 2, in both coordinates; y points up."""

    stiffness: float = -2.0
    lift: float = 0.0
    mass: float = 1.3
    gravity: float = 9.81
    curvature: float = 0.8
    friction: float = 1.5

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[1] + 0.5 * self.stiffness * q[0] ** 2

    def dissipation(self, t, q, v):
        return 0.5 * self.friction * v @ v

    def force(self, t, q, v, w, u):
        return jnp.stack([jnp.zeros_like(q[0]), self.lift + 0.0 * q[1]])

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - 0.5 * self.curvature * q[0] ** 2])

    def labels(self):
        return jaxdae.Labels(("x", "y"), ("m", "m"), ("wire",), ("m",))


bead = Bead()
slant = 0.8 * bead.curvature
start = jaxdae.State(jnp.array([0.8, 0.4 * slant]), 0.5 * jnp.array([1.0, slant]))
shulgin, multipliers = (
    jaxdae.simulate(bead, formulation, start, t1=6.0, dt=0.005, solver=RK4())
    for formulation in (
        jaxdae.VelocityElimination(("x",)),
        jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0)),
    )
)
difference = float(jnp.abs(shulgin.q - multipliers.q).max())
reactions = float(jnp.abs(shulgin.multipliers - multipliers.multipliers).max())
print("Shulgin's equations against multipliers, coordinates [m]:", difference)
print("reactions, which Shulgin's equations give afterwards [N]:", reactions)

assert difference < 1e-6
assert reactions < 1e-5

# %% [markdown]
# ## 2. Equilibrium and its roots
#
# At rest (eq. 12) $\partial W/\partial q_I + B^\top\,\partial W/\partial q_D = Q_I + B^\top Q_D$
# with $W = V - T_0$, together with $f(q) = 0$. The potential energy need *not* be stationary in
# the redundant coordinates: at the bottom of the wire its slope by $y$ is the bead's weight.
# Write $q_D = q_{D0} + B_0 x + z$. Then $\dot z$ has no linear part, which makes $m$ zero roots,
# and the others solve (eq. 17)
#
# $$
# \det\bigl[A\mu^2 + (\Gamma + G)\mu + C_1 + C_2 B + B^\top C_3 + B^\top C_4 B + C_B + P\bigr] = 0
# .
# $$

# %%
rest = equilibrium(bead, jnp.array([0.1, 0.05]))
slope = jax.grad(lambda q: bead.potential_energy(0.0, q))(rest.q)
lin = linearize(bead, rest, independent=("x",))
roots = spectrum(lin)
parts = characteristic_matrix(bead, rest, independent=("x",))
print("equilibrium [m]:", np.asarray(rest.q), "  slope of V there [N]:", np.asarray(slope))
print("all roots [1/s]:", roots.roots, "  zeros of constraints:", roots.constraint_zeros)
print("roots of eq. 17:", parts.roots())
print(f"verdict: {roots.verdict}: {roots.reason}")

assert np.abs(slope).max() > 1
assert roots.constraint_zeros == 1
assert np.allclose(roots.others, parts.roots(), atol=1e-10)
assert roots.verdict == "asymptotically stable"

# %% [markdown]
# ### What the term $C_B$ does, and remark 6
#
# The spring of this bead pushes outwards ($k < 0$). What holds it is the curvature of the wire
# times its weight, $C_B = m g \kappa$. Who replaces the wire by its tangent before forming the
# equations finds a stiffness of $k$ alone, and an unstable equilibrium.
#
# Remark 6 allows the shortcut if $C_B = 0$ and no constant non-potential force acts on a
# dependent coordinate. That is sufficient, but not necessary: a lift that carries the weight of
# the bead violates both conditions, and nothing is lost, because only the sum $C_B + P_B$ (with
# $P_B$ from that force) counts.

# %%
rows, cases = [], {}
for name, system in (
    ("no lift", bead),
    ("lift carries weight", Bead(stiffness=2.0, lift=1.3 * 9.81)),
):
    lost = linearized_constraint(system, equilibrium(system, jnp.zeros(2)), independent=("x",))
    C_B, P_B = float(lost.C_B[0, 0]), float(lost.P_B[0, 0])
    cases[name] = lost
    shown = roots_text(lost.roots), roots_text(lost.wrong_roots)
    rows.append((name, C_B, P_B, "yes" if lost.valid else "no", *shown))
heads = ("bead", "C_B [N/m]", "P_B [N/m]", "shortcut right", "roots [1/s]", "of the shortcut")
print(table(heads, rows))

assert not cases["no lift"].valid
assert cases["no lift"].roots.real.max() < 0 < cases["no lift"].wrong_roots.real.max()
assert cases["lift carries weight"].valid
assert abs(cases["lift carries weight"].C_B).max() > 10

# %%
plot_roots(
    {
        "exact": np.append(cases["no lift"].roots, 0),
        "wire linearized": cases["no lift"].wrong_roots,
    },
    title="Bead held by the curvature of its wire",
)

# %% [markdown]
# ## 3. Holonomic against nonholonomic
#
# The same spectrum, $m$ or $r$ zeros and the rest with negative real parts, means different
# things. A position constraint forces $z \equiv 0$. A velocity constraint does not: its
# equilibria form a manifold, and a disturbed motion comes to rest on it somewhere. A skate on
# springs, with a blade that cannot move sideways:


# %%
class Skate(jaxdae.System):
    """A unit mass on a blade, all of x, y and its heading held by springs and dampers."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + v[1] ** 2 + 0.3 * v[2] ** 2)

    def potential_energy(self, t, q):
        return 0.5 * q @ q

    def dissipation(self, t, q, v):
        return 0.5 * v @ v

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[1] * jnp.cos(q[2]) - v[0] * jnp.sin(q[2])])


skate = Skate()
verdict = spectrum(linearize(skate, equilibrium(skate, jnp.zeros(3))))
print(f"roots [1/s]: {verdict.roots}\nverdict: {verdict.verdict}: {verdict.reason}")

formulation, ends, motions = jaxdae.Multipliers(jaxdae.Baumgarte(Gamma=10.0)), [], {}
for x in (0.5, 1.0, 1.5):
    away = jaxdae.State(jnp.array([x, 0.0, 0.8]), jnp.zeros(3))
    run = jaxdae.simulate(skate, formulation, away, t1=30.0, dt=0.02, solver=RK4())
    motions[f"x(0) = {x:g} m"] = run.q
    ends.append(np.asarray(run.q[-1]))
print("where it comes to rest, x, y [m] and heading [rad]:\n", np.round(ends, 5) + 0.0)

assert verdict.verdict == "stable"
assert np.abs(np.array(ends)[:, 1]).min() > 0.05
assert np.abs(np.array(ends)[:, [0, 2]]).max() < 1e-2

panels = {
    label: {name: q[:, i] for name, q in motions.items()}
    for i, label in ((0, "x [m]"), (1, "y [m]"))
}
plot_series(run.ts, panels, title="Skate on springs: y stays where the blade leaves it")

# %% [markdown]
# ## What holds, and what does not
#
# - **Holds**: exactly as many zero roots as constraints; the others from eq. 17.
# - **Holds**: the theorem, and its difference from the nonholonomic case.
# - **Sufficient, not necessary**: remark 6. Exactly $C_B + P_B = 0$ is needed.
