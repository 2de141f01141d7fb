# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Choosing gains
#
# A stabilized constraint obeys $\ddot f = -K_D \dot f - K_P f$. Which $K_D$, $K_P$? Exact
# integration likes them large without end; a method with steps $h$ does not. Theory gives an
# answer that depends on the method and the step alone. Gradients then find what theory cannot
# know: the motion, the starts, the range of steps that has to be served.

# %%
# %matplotlib inline
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display

import jaxdae
from jaxdae.models import get_model
from jaxdae.plotting import style
from jaxdae.solvers import RK4
from jaxdae.stability import amplification, motion_frequency, step_gains, step_matrix
from jaxdae.tables import table
from jaxdae.tuning import Conditions, IntegratedViolation, perturbed_states, SimulationObjective

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## 1. Theory: zeros of the stability function
#
# Near the constraint a violation $y = (f, \dot f)$ follows $\dot y = A y$, and a Runge–Kutta step
# multiplies it by $R(hA)$, with $R$ the method's stability function. If both roots of
# $s^2 + K_D s + K_P$ are two different zeros of $R$, divided by $h$, then $R(hA) = 0$: the
# violation is gone after **one** step. Where the method has a single zero, as Euler's has, both
# roots are put there: $R(hA)$ is nilpotent, and the violation is gone after **two** steps.
# `step_gains` finds them; here with $h = 1$, that is $K_D h$ and $K_P h^2$.

# %%
METHODS = {
    "Euler": diffrax.Euler(),
    "Heun": diffrax.Heun(),
    "Bosh3 (order 3)": diffrax.Bosh3(),
    "RK4": RK4(),
    "Dopri5": diffrax.Dopri5(),
    "Tsit5": diffrax.Tsit5(),
    "Dopri8": diffrax.Dopri8(),
}
exact = {name: step_gains(solver, 1.0) for name, solver in METHODS.items()}
rows = [(name, g.K_D, g.K_P, g.factor, g.Gamma, g.velocity_factor) for name, g in exact.items()]
print(table(("method", "K_D h", "K_P h^2", "left", "Gamma h", "left"), rows))

classical = {"Euler": (2, 1), "Heun": (2, 2), "Bosh3 (order 3)": (1.4039, 3.7592)}
for name, known in (classical | {"RK4": (3.4589, 3.7813)}).items():
    assert np.allclose((exact[name].K_D, exact[name].K_P), known, atol=6e-5)
assert all(g.factor < 1 for g in exact.values())

# The factor is an eigenvalue; what a step really leaves is the matrix.
remains = {}
for name, gains in exact.items():
    A = np.array([[0.0, 1.0], [-gains.K_P, -gains.K_D]])
    one = step_matrix(A, 1.0, METHODS[name])
    remains[name] = np.abs(one).max(), np.abs(one @ one).max()
print(table(("method", "after one step", "after two"), [(x, *remains[x]) for x in METHODS]))

assert remains["Euler"][0] > 0.9
assert remains["Euler"][1] < 1e-12
assert all(remains[name][0] < 1e-10 for name in METHODS if name != "Euler")

# %% [markdown]
# Euler's line is Baumgarte's classical $\alpha = \beta = 1/h$. A velocity constraint,
# $\dot g = -\Gamma g$, has one root; where $R$ has no real zero, something is left by every step:
# the last column.
#
# The plane of $(K_D h, K_P h^2)$ for five methods: how much of a violation a step leaves, the limit
# beyond which it grows (red; grey outside), and theory's point (the star).

# %%
x, y = np.linspace(0.02, 9.0, 160), np.linspace(0.02, 18.0, 160)
half = -0.5 * x[:, None].astype(complex)
root = np.sqrt(half**2 - y + 0j)
roots = np.stack([half + root, half - root], axis=-1)
shown = ("Euler", "Heun", "RK4", "Dopri5", "Dopri8")
figure, axes = style.new_axes(1, len(shown), sharex=False)
figure.set_size_inches(15, 3.4)
figure.set_layout_engine("constrained")  # makes room for the bar of colours
radius, shades = {}, {}
for ax, name in zip(axes[0], shown, strict=True):
    radius[name] = amplification(METHODS[name], roots).max(axis=-1)
    ax.set_facecolor("lightgrey")
    shades[name] = ax.contourf(x, y, radius[name].T, np.linspace(0, 1, 11), cmap="viridis_r")
    ax.contour(x, y, radius[name].T, [1.0], colors=style.FAILURE)
    ax.plot(exact[name].K_D, exact[name].K_P, "*", color="white", markeredgecolor="k", ms=14)
    ax.set_title(name)
    ax.set_xlabel("K_D h")
axes[0, 0].set_ylabel("K_P h²")
figure.colorbar(shades[shown[0]], ax=list(axes[0]), label="left by a step")
display(figure)

# %%
stable = {name: float(np.mean(radius[name] < 1)) for name in shown}
print("part of the plane that is stable:", {name: round(x, 3) for name, x in stable.items()})

assert stable["Euler"] < stable["Heun"] < stable["RK4"] < stable["Dopri8"]

# %% [markdown]
# ## 2. Runs
#
# A pendulum in Cartesian coordinates, started off its rod. One program runs many gains at once.

# %%
model = get_model("pendulum")
system = model.system()
start = jaxdae.State(*model.start(system))
H, END = 0.01, 1.0


@jax.jit
def runs(K_D, K_P, states):
    """Violations of both levels of many gains, each from every start."""

    def one(K_D, K_P, state):
        formulation = jaxdae.Multipliers(jaxdae.Baumgarte(K_D, K_P))
        run = jaxdae.simulate(
            system,
            formulation,
            state,
            t1=END,
            dt=H,
            solver=RK4(),
            throw=False,
            start_tolerance=None,
        )
        return run.violation.phi[:, 0], run.violation.phi_dot[:, 0]

    over_starts = jax.vmap(one, (None, None, 0))
    return jax.vmap(over_starts, (0, 0, None))(jnp.asarray(K_D), jnp.asarray(K_P), states)


off = perturbed_states(start, jax.random.key(0), 8, 0.01, 0.01)  # by 1 cm and 1 cm/s
on = jax.tree.map(lambda x: jnp.repeat(x[None], 8, axis=0), start)

# Roots -1.2 / h and -0.6 / h: the slower one is what remains. What the steps' own errors make is
# the same with and without a small violation, and cancels in the difference.
slow, fast = 0.6, 1.2
near = perturbed_states(start, jax.random.key(0), 8, 1e-5, 1e-5)
gains = [(slow + fast) / H] * 40, [slow * fast / H**2] * 40
phi = runs(*gains, near)[0] - runs(*gains, on)[0]
steps = np.arange(8, 13)
measured = np.abs(phi[0, :, steps[1:]] / phi[0, :, steps[:-1]])
predicted = float(amplification(RK4(), np.array(-slow + 0j)))
print("factor per step by linear theory:", predicted, "measured:", float(np.median(measured)))

assert abs(np.median(measured) / predicted - 1) < 0.05

# %% [markdown]
# Linear theory ends where the constraint's curvature speaks: a violation $f_0$ that is removed in
# one step leaves about $f_0^2$, and the errors of the steps feed new ones.
#
# ## 3. Two regimes
#
# For a violation that is *given*, larger gains are better up to theory's. From a start *on* the
# constraint only the steps' own errors feed the violation, and large gains amplify these. What
# steps inject depends on the motion: it is measured along a first run (`motion=fine`).
# Critically damped gains of many rates, both kinds of start:

# %%
rates = np.geomspace(0.01, 1.6, 38) / H
given = jaxdae.Baumgarte.for_step(RK4(), H)
fine = jaxdae.simulate(
    system, jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0)), start, t1=END, dt=H, solver=RK4()
)
omega = motion_frequency(system, fine)
own = jaxdae.Baumgarte.for_step(RK4(), H, regime="steps", motion=fine)
K_D = np.array([*(2 * rates), given.K_D, own.K_D])
K_P = np.array([*rates**2, given.K_P, own.K_P])


def left(states):
    """Mean integrated squares of the violation."""
    phi, _ = runs(K_D, K_P, states)
    return np.asarray(jnp.mean(jnp.sum(H * phi[:, :, 1:] ** 2, axis=2), axis=1))


left_off, left_on = left(off), left(on)
figure, axes = style.new_axes(1, 2, sharex=False)
for ax, line, title in zip(axes[0], (left_off, left_on), ("off", "on"), strict=True):
    ax.loglog(rates * H, line[:-2], label="critical damping")
    ax.axhline(line[-2], color=style.PALETTE[1], label="theory, given violation")
    ax.axhline(line[-1], color=style.PALETTE[2], label="theory, errors of steps")
    ax.set_title(f"start {title} the constraint: integrated f²")
    ax.legend(fontsize="small")
    ax.set_xlabel("rate · h")
display(figure)

# %%
best_off, best_on = rates[np.nanargmin(left_off[:-2])] * H, rates[np.nanargmin(left_on[:-2])] * H
print(f"best rate times h: {best_off:.3g} off, {best_on:.3g} on the constraint")
print(f"rate of the motion: {omega:.3g} 1/s")
over_best = left_off[-2] / np.nanmin(left_off[:-2]), left_on[-1] / np.nanmin(left_on[:-2])
print("theory over the best of the scan: {:.3g} off, {:.3g} on the constraint".format(*over_best))

assert best_on < best_off / 2
assert over_best[0] < 3
assert over_best[1] < 3
assert left_on[-2] > 10 * left_on[-1]  # gains of the one regime are not for the other
assert left_off[-1] > 10 * left_off[-2]

# %% [markdown]
# ## 4. Both levels, and a price
#
# A violation $f_0$ removed in the time $\tau$ takes a rate $f_0/\tau$: what is good for positions
# is bad for velocities. A time scale joins them, $|f|^2 + \tau^2 |\dot f|^2$; here two steps, what
# a rate makes of the position in them. The cost is a sum of squares, so that `tune` takes
# Levenberg–Marquardt. In the first 0.2 s the given violation is all there is; over a longer time
# the errors of the steps pull the gains down, towards those of the other regime.

# %%
cost = IntegratedViolation.at_both_levels(2 * H)
first = jaxdae.Multipliers(
    jaxdae.Baumgarte(K_D=jaxdae.tuning.Positive(20.0), K_P=jaxdae.tuning.Positive(100.0))
)


def objective(multiples, key, count):
    """Mean cost of some starts at several multiples of the step."""
    states = perturbed_states(start, jax.random.key(key), count, 3e-3, 3e-3)
    conditions = Conditions(dt=[x * H for x in multiples])
    return SimulationObjective(
        cost, states, system=system, t1=0.2, conditions=conditions, solver=RK4()
    )


one_step = jaxdae.tune(objective((1.0,), 1, 8), first, steps=38)
print(one_step.summary())
found = one_step.params.stabilization
off_by = max(abs(found.K_D / given.K_D - 1), abs(found.K_P / given.K_P - 1))
print(f"off theory's gains by {100 * off_by:.2g} %")

assert off_by < 0.03
assert one_step.evaluations < 40

# %% [markdown]
# Tuning for one step finds theory's gains. They are made for that step: at twice of it every run
# blows up. So tune for a range, and judge at others.

# %%
wide = jaxdae.tune(objective((0.6, 0.8, 1.25, 1.7, 2.1), 1, 8), first, steps=38)
print(wide.summary())

# %%
held_out = objective((0.5, 1.0, 1.5, 2.0), 2, 32)
sets = {
    "first": jaxdae.tuning.resolve(first),
    "theory, one step": jaxdae.Multipliers(given),
    "tuned, one step": one_step.params,
    "theory, range": jaxdae.Multipliers(jaxdae.Baumgarte.for_step(RK4(), 2 * H, margin=4.0)),
    "tuned, range": wide.params,
}
arrays = {name: jax.tree.map(jnp.asarray, gains) for name, gains in sets.items()}
judge = jax.jit(lambda gains: held_out.costs(gains).reshape(4, 32).mean(axis=1))
judged = {name: np.asarray(judge(gains)) for name, gains in arrays.items()}
print(
    table(("gains", "h/2", "h", "1.5 h", "2 h"), [(k, *map(float, v)) for k, v in judged.items()])
)

assert judged["theory, one step"][3] > 1e6 * judged["first"][3]
assert np.all(judged["tuned, range"] < judged["first"])
assert np.all(np.isfinite(judged["theory, range"]))

# %% [markdown]
# ## 5. The certificate
#
# What is sure (the decay of a Lyapunov function, the step limit), and what was seen (the worst
# case, and over how many runs):

# %%
print(wide.certificate)

assert wide.certificate.failed == 0
assert wide.certificate.step_margin > 1
assert one_step.certificate.step_margin < 2

# %% [markdown]
# ## 6. A rule of thumb
#
# For the step alone, and for steps down to a quarter: gains in units of the *longest* step, and
# what the worst step of the range leaves of a mode.

# %%
thumb = []
for name, solver in METHODS.items():
    ranges = [step_gains(solver, 1.0, margin=margin) for margin in (1.0, 4.0)]
    thumb.append((name, *(x for g in ranges for x in (g.K_D, g.K_P, g.factor))))
heads = ("method", "K_D h", "K_P h^2", "left", "K_D h, to h/4", "K_P h^2", "left")
print(table(heads, thumb))

assert all(row[6] < 1 for row in thumb)  # every range is damped
assert all(row[6] > row[3] for row in thumb)  # at a price

# %% [markdown]
# - A start that may be off, one fixed step: `Baumgarte.for_step(solver, dt)`.
# - Several steps: `Baumgarte.for_step(solver, dt_max, margin=dt_max / dt_min)`, or tune.
# - Consistent starts: `regime="steps"` with `motion=` a first run; the gains follow the motion.
# - More is known of the motion and its starts: `tune`, and judge on others.
