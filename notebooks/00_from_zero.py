# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From zero: declare, simulate, differentiate, tune
#
# Ten minutes with jaxdae, on the smallest constrained system there is: a point mass on a massless
# rod, described by both of its Cartesian coordinates. One coordinate is too many, and a
# constraint takes it back. Everything below works in the same way for a robot with closed loops.

# %%
# %matplotlib inline
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display

import jaxdae
from jaxdae.plotting import (
    plot_comparison,
    plot_histories,
    plot_tuning,
    plot_violation,
    style,
)
from jaxdae.solvers import RK4
from jaxdae.tuning import IntegratedViolation, Logarithm, perturbed_states, SimulationObjective

jax.config.update("jax_enable_x64", True)  # double precision; single works too

# %% [markdown]
# ## 1. Declare
#
# With $q = (x, y)$, the $y$ axis upwards,
#
# $$T = \tfrac12 m\,(\dot x^2 + \dot y^2), \qquad V = m g y, \qquad f(q) = x^2 + y^2 - l^2 = 0 .$$
#
# That is all there is to say about the system, and all that is declared. `labels` is optional; it
# names things in figures and messages.

# %%
GRAVITY = 9.81


class Pendulum(jaxdae.System):
    """Point mass on a rod."""

    mass: float = 1.0
    length: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * GRAVITY * q[1]

    def position_constraints(self, t, q):
        return jnp.array([q @ q - self.length**2])

    def labels(self):
        return jaxdae.Labels(("x", "y"), ("m", "m"), ("rod",), ("m^2",))


system = Pendulum()

# %% [markdown]
# ## 2. What follows from the declaration
#
# The equations of motion, with every sign as it is used throughout the library, are
#
# $$M a + J^\top \lambda = f, \qquad J a + \gamma = \ddot\phi ,$$
#
# so that the reaction of the constraint is $-J^\top\lambda$. Mass matrix, forces, Jacobian and
# $\gamma$ come from automatic differentiation of the declaration. Here they are at a state that
# lies *on* the constraint: `consistent_state` finds the nearest one to a guess.

# %%
guess_q, guess_v = jnp.array([0.8, -0.7]), jnp.array([1.0, 0.0])
state = jaxdae.consistent_state(system, guess_q, guess_v)
dynamics = jaxdae.evaluate(system, 0.0, state.q, state.v)

print("q =", state.q, "  v =", state.v)
for name in ("mass", "force", "jac", "gamma", "phi", "phi_dot"):
    print(f"{name:8s}", np.asarray(getattr(dynamics, name)).tolist())

assert np.abs(dynamics.phi).max() < 1e-12
assert np.abs(dynamics.phi_dot).max() < 1e-12

# %% [markdown]
# The multiplier solves $J M^{-1} J^\top \lambda = J M^{-1} f + \gamma$. For the pendulum it can
# be found on paper: the rod pulls with $m\,(|v|^2/l + g\cos\alpha)$ for a rod at the angle
# $\alpha$ from the downward vertical, and that is $|J^\top\lambda| = 2 l \lambda$.

# %%
lam = jaxdae.Multipliers().multipliers(system, 0.0, state, None)
by_hand = system.mass * (state.v @ state.v - GRAVITY * state.q[1]) / (2 * system.length**2)
acceleration = jnp.linalg.solve(dynamics.mass, dynamics.force - dynamics.jac.T @ lam)

print("multiplier:          ", float(lam[0]))
print("by hand:             ", float(by_hand))
print("J a + gamma [m^2/s^2]:", np.asarray(dynamics.jac @ acceleration + dynamics.gamma))

assert np.allclose(lam[0], by_hand, rtol=1e-12)
assert np.allclose(dynamics.jac @ acceleration + dynamics.gamma, 0.0, atol=1e-12)

# %% [markdown]
# ## 3. Simulate
#
# Demanding $\ddot f = 0$ keeps the *acceleration* on the constraint. Positions drift off:
# whatever error a step makes in $\dot f$ stays, and the error in $f$ grows with time. Baumgarte's
# remedy is to demand
#
# $$\ddot f = -K_D\,\dot f - K_P\, f$$
#
# instead, so that a violation dies out. We compare both with classical Runge–Kutta and a coarse
# step.

# %%
STEP, END = 0.02, 20.0
start = jaxdae.State(jnp.array([1.0, 0.0]), jnp.zeros(2))
baumgarte = jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
runs = {
    name: jaxdae.simulate(
        system, jaxdae.Multipliers(stabilization), start, t1=END, dt=STEP, solver=RK4()
    )
    for name, stabilization in (("without", None), ("Baumgarte", baumgarte))
}

plot_comparison(runs, title="Pendulum, Runge-Kutta steps of 0.02 s")

# %%
drift = {name: float(abs(run.violation.phi[-1, 0])) for name, run in runs.items()}
largest = {name: float(abs(run.violation.phi).max()) for name, run in runs.items()}
print("violation at the end [m^2]:", drift)
print("largest violation    [m^2]:", largest)

assert drift["without"] > 100 * drift["Baumgarte"]
assert drift["without"] > 0.9 * largest["without"]  # it is still growing at the end

# %% [markdown]
# The third picture is a warning. The stabilized run is better there too, because it stays on the
# rod, but it still loses energy, steadily: that is an error of the integration *along* the
# constraint, and no stabilization sees it. A small violation alone does not prove that a motion
# is right. The remedy is a better integration: without `dt` the solver chooses its steps, by
# default to a tolerance of $10^{-8}$.

# %%
loss = {name: float(abs(run.energy - run.energy[0]).max()) for name, run in runs.items()}
adaptive = jaxdae.simulate(system, jaxdae.Multipliers(baumgarte), start, t1=END)
adaptive_loss = float(abs(adaptive.energy - adaptive.energy[0]).max())
print("energy error [J], steps of 0.02 s:", loss)
print("energy error [J], adaptive:       ", adaptive_loss)

assert loss["Baumgarte"] < loss["without"]
assert adaptive_loss < 1e-2 * loss["Baumgarte"]

# %%
plot_histories(adaptive, quantities=("q", "multipliers"), title="Pendulum, adaptive steps")

# %% [markdown]
# ## 4. Differentiate
#
# A simulation is a function of its parameters, and `jax.grad` takes its derivative: here of the
# height of the mass after one second by the length of the rod. The start moves with the length,
# so it is part of the function.


# %%
def height(length):
    """Height of the mass after one second [m]."""
    longer = Pendulum(length=length)
    rest = jaxdae.State(length * jnp.array([1.0, 0.0]), jnp.zeros(2))
    formulation = jaxdae.Multipliers(baumgarte)
    run = jaxdae.simulate(longer, formulation, rest, t1=1.0, dt=0.01, solver=RK4())
    return run.final_state.q[1]


value_and_slope = jax.jit(jax.value_and_grad(height))
_, slope = value_and_slope(1.0)
h = 1e-4
difference = (value_and_slope(1.0 + h)[0] - value_and_slope(1.0 - h)[0]) / (2 * h)
print("automatic differentiation:", slope)
print("central difference:       ", difference)

# A central difference is wrong by about h^2 times the third derivative.
assert abs(slope - difference) < 1e-4

# %% [markdown]
# ## 5. Tune
#
# How large should the gains be? With $K_D = 2 k$, $K_P = k^2$ every violation decays like
# $e^{-kt}$, so the exact equations say: the larger $k$, the better. A computer takes steps, and
# for a given step large gains are unstable. An optimum exists *for that step*. We start a batch
# of runs a few millimetres off the constraint, integrate the squared violation, and try many
# values of $k$ at once with `jax.vmap`. (`from_start=False` leaves out the given start itself,
# which no gain can change.)


# %%
def build(k):
    """System, formulation and controller for a parameter."""
    return system, jaxdae.Multipliers(jaxdae.Baumgarte.critical(k)), None


def objective_from(spread):
    """Mean cost over eight starts off the constraint by so much [m, m/s]."""
    return SimulationObjective(
        IntegratedViolation(velocity=0.0, from_start=False),
        perturbed_states(start, jax.random.key(0), count=8, position=spread, velocity=spread),
        build=build,
        t1=1.0,
        dt=STEP,
        solver=RK4(),
    )


@eqx.filter_jit
def sweep(objective, ks):
    """Costs of many gains at once."""
    return jax.vmap(objective)(ks)


objective = objective_from(3e-3)
ks = jnp.geomspace(0.5, 150.0, 200)
costs = np.asarray(sweep(objective, ks))
best = float(ks[np.nanargmin(costs)])
print("budget:", objective.budget)
print(f"best k on the grid: {best:.1f} 1/s")

# %% [markdown]
# `tune` finds the place by gradient descent. Its objective is the logarithm, because such costs
# fall by powers of ten; `Positive` keeps the gain positive. Any pytree can be tuned in this way:
# matrices of gains, masses, lengths, the weights of a controller.

# %%
result = jaxdae.tune(Logarithm(objective), jaxdae.tuning.Positive(5.0), steps=150)
print(result.summary())
tuned = float(result.params)
cut = float(np.exp(result.initial_loss - result.loss))
print(f"tuned k = {tuned:.2f} 1/s, the cost is cut {cut:.3g}-fold")

assert abs(np.log(tuned / best)) < 0.1
assert cut > 10

# %%
plot_tuning(result.history, title="Logarithm of the cost, and its gradient")

# %% [markdown]
# The optimum is at $k h$ of order one: a violation that dies within about two steps. `step_limit`
# says where these gains become unstable, from the tableau of the method.

# %%
limit = jaxdae.step_limit(jaxdae.Baumgarte.critical(tuned), RK4()).limit
print("k h at the optimum:", tuned * STEP)
print("largest stable step for the tuned gains [s]:", limit, "; k times it:", limit * tuned)

assert 0.5 < tuned * STEP < 2.0
assert limit > STEP
assert 2.7 < limit * tuned < 2.8

# %% [markdown]
# A tuned gain answers the question that it was asked: get rid of an initial violation. A run that
# *starts* on the constraint has another problem, the errors of its own steps, and large gains
# amplify these. The same sweep with starts on the constraint has its minimum elsewhere.

# %%
exact_costs = np.asarray(sweep(objective_from(0.0), ks))
calm = float(ks[np.nanargmin(exact_costs)])
print(f"best k for starts off the constraint: {best:.1f} 1/s, on it: {calm:.1f} 1/s")

assert ks[0] < calm < 0.2 * best

figure, axes = style.new_axes(1, title="Integrated squared violation, steps of 0.02 s")
figure.set_size_inches(8.0, 4.0)
ax = axes[0, 0]
shown = costs < 100 * costs[0]  # beyond, runs blow up
ax.plot(ks[shown], costs[shown], label="starts 3 mm off")
ax.plot(ks[shown], exact_costs[shown], color=style.PALETTE[4], label="starts on the constraint")
ax.plot(5.0, np.exp(result.initial_loss), "s", color=style.PALETTE[1], label="descent begins")
ax.plot(tuned, np.exp(result.loss), "o", color=style.PALETTE[2], label="tuned")
ax.axvline(limit * tuned / STEP, linestyle=":", color=style.FAILURE, label="limit of stability")
ax.set_xscale("log")
style.logarithmic(ax)
ax.set_ylabel("cost [m⁴ s]")
style.finish(axes, xlabel="decay rate k [1/s]")
display(figure)

# %% [markdown]
# So we take that one for the long run of section 3.

# %%
formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(calm))
runs["best of the sweep"] = jaxdae.simulate(
    system, formulation, start, t1=END, dt=STEP, solver=RK4()
)
final = {name: float(abs(run.violation.phi).max()) for name, run in runs.items()}
print("largest violation [m^2]:", final)

assert final["best of the sweep"] < 2 * final["Baumgarte"] < final["without"]

plot_violation(runs, title="Pendulum, Runge-Kutta steps of 0.02 s")

# %% [markdown]
# ## 6. Where to go from here
#
# - `jaxdae list` shows the ready systems, `jaxdae tune two-link` tunes one of them on the command
#   line.
# - Other formulations of the same declaration: `Penalty`, `AugmentedLagrangian`, `Hamiltonian`,
#   `NullSpace`, `VelocityElimination`, `QuasiVelocities`, `RealizingForces`. The notebooks 01 to
#   05 use them, paper by paper.
