# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Control of a system with differential constraints
#
# R. G. Mukharlyamov, *Control of the dynamics of a system with differential constraints*, 2019
# ("Servo"). A control must enforce *program* constraints that it reaches only through actuators.
# The paper claims that
#
# 1. differentiating a constraint along the flow until the control appears gives the control, and
#    the violation then obeys constraint perturbation equations of our choice (sections 2, 3, 5);
# 2. a quadratic Lyapunov function bounds the violation, with the rate $2 s / m_2$ (section 3);
# 3. asymptotic stability is not enough for a computer: the step of Euler's or Runge and Kutta's
#    method must contract the violation too (section 4);
# 4. the control law of a mirror of adaptive optics is eq. 5.7;
# 5. the same construction stabilizes first integrals (section 0; Baumgarte's Kepler motion).

# %%
# %matplotlib inline
import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display
from jax.scipy.linalg import expm

import jaxdae
from jaxdae.analysis import lyapunov_certificate, modal_weight, step_matrix, weighted_norm
from jaxdae.control import HurwitzGains, relative_degree, StabilizedIntegrals
from jaxdae.models import AdaptiveMirror, Kepler
from jaxdae.models.mirror import coefficients, voltage
from jaxdae.plotting import plot_series, style
from jaxdae.solvers import RK4
from jaxdae.tables import table

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## 1. The mirror, and its relative degree
#
# A crank of length $l$ carries a mirror of mass $m$; a motor turns it, so that the beam from
# $P(s(t), 0)$ is reflected to $C(c, 0)$. Angle $\varphi$, torque $\tau$ of the motor and its rate
# $z$ obey (eq. 5.2)
#
# $$
# m l^2 \ddot\varphi = -m g l \cos\varphi + \tau, \quad \dot\tau = z, \quad \dot z = -\tfrac{R}{L}
# z - \tfrac{k_a k_b}{n L}\,\dot\varphi + \tfrac{k_a}{L}\,u,
# $$
#
# and the program is (eq. 5.1)
#
# $$f = l\,(s(t) + c) - 2\,c\,s(t) \cos\varphi = 0 .$$
#
# How often must $f$ be differentiated until the voltage $u$ appears? `relative_degree` finds out,
# by nested forward differentiation along the flow.

# %%
mirror, free = AdaptiveMirror(), jaxdae.Multipliers()
sample = mirror.program_state(0.0)
degree = relative_degree(mirror, free, mirror.program, sample, controls=1)
decoupling = float(degree.matrices[0, 0, 0])
inertia = mirror.mass * mirror.length**2
by_hand = 2 * mirror.target * mirror.source(0.0) * jnp.sin(sample.q[0])
by_hand = float(by_hand / inertia * mirror.torque_constant / mirror.inductance)
print("relative degree:", degree.degrees)
print("factor of u in the fourth derivative:", decoupling, "  by hand:", by_hand)

assert degree.degrees == (4,)
assert np.isclose(decoupling, by_hand, rtol=1e-12)

# %% [markdown]
# With $y = (f, \dot f, \ddot f, \dddot f)$ the control solves $y^{(4)} = \Phi(y)$ (eq. 5.6). A
# linear $\Phi$ with a Hurwitz polynomial makes $f = 0$ asymptotically stable (eq. 5.8). We choose
# real, distinct roots and start 0.05 rad off.

# %%
ROOTS = np.array([1.0, 0.8, 0.5, 0.3])


def servo_with(rate):
    """The servo-constraint with roots `-rate * ROOTS` [1/s]."""
    gains = HurwitzGains(np.poly(-rate * ROOTS)[:0:-1])
    return jaxdae.ServoConstraint(
        mirror.program, gains, system=mirror, formulation=free, sample=sample, degrees=(4,)
    )


def drive(controller, start, dt, steps, solver):
    """A run of fixed steps under a controller, and the violation at each of them."""
    run = jaxdae.simulate(
        mirror, free, start, t1=steps * dt, dt=dt, solver=solver, controller=controller, throw=False
    )
    f = np.asarray(jax.vmap(mirror.program)(run.ts, run.q, run.v))[:, 0]
    return run, np.abs(f)


off = jaxdae.State(sample.q + 0.05, sample.v, sample.w)
slow = servo_with(20.0)
run, f = drive(slow, off, 0.01, 800, RK4())
program = np.asarray(jax.vmap(mirror.program_angle)(run.ts))
print("violation at the start, after 3 s, at the end [m^2]:", f[0], f[300], f[-1])

assert f[300] < 1e-3 * f[0]

panels = {
    "angle [rad]": {"mirror": run.q[:, 0], "program": program},
    "|f| [m²]": f,
    "voltage [V]": run.u[:, 0],
}
plot_series(run.ts, panels, log=["|f| [m²]"], title="Mirror, started 0.05 rad off its program")

# %% [markdown]
# It decays with the slowest root down to the error of the method, which the gains hold in check.
# How they do is the matter of section 4 of the paper.
#
# The general equation is quoted in the introduction as $\alpha_j y^{(j)} = 0$ with the sum from
# $j = 1$ (eq. 0.10), and with $\alpha_j\mu^j = (\mu + \gamma)^m$. The two do not fit: without
# $\alpha_0 y$ zero is a root, and a violation stays where it is.

# %%
full = np.asarray(HurwitzGains.repeated(2.0, 4).coefficients)  # (mu + 2)^4, ascending
summed_from_1 = np.r_[0.0, full[1:]]
companion = {}
for name, c in (("from j = 0", full), ("from j = 1, as printed", summed_from_1)):
    H = np.eye(4, k=1)
    H[-1] = -c
    late = np.asarray(expm(jnp.asarray(20.0 * H))) @ np.array([1.0, 0.0, 0.0, 0.0])
    companion[name] = float(abs(late[0]))
print("a violation of 1 after 20 s:", companion)

assert companion["from j = 0"] < 1e-9
assert abs(companion["from j = 1, as printed"] - 1) < 1e-9

# %% [markdown]
# ## 2. The Lyapunov bound, and its constant
#
# For $\dot y = H y$ and $V = \tfrac12 y^\top m\, y$ with $m_1 \|y\|^2 \le V \le m_2 \|y\|^2$,
# $\dot V \le -s \|y\|^2$ the paper concludes $\|y\|^2 \le (m_2/m_1)\,\|y_0\|^2 e^{-\lambda t}$
# with $\lambda = 2 s/m_2$. What follows is
#
# $$\dot V \le -s\|y\|^2 \le -\frac{s}{m_2} V \quad\Rightarrow\quad \lambda = \frac{s}{m_2} .$$
#
# The smallest example refutes the factor: $H = -1$, $m = 1$ has $m_1 = m_2 = \tfrac12$, $s = 1$,
# and $y^2 = y_0^2 e^{-2t}$.

# %%
one = lyapunov_certificate(H=-np.eye(1), weight=np.eye(1))
exact = np.exp(-2.0)  # |y|^2 after one second
print(f"m1 = {one.m1}, m2 = {one.m2}, s = {one.s}, rate = {one.rate}")
print("|y(1)|^2:", exact, " bound:", np.exp(-one.rate), " bound as printed:", np.exp(-2 * one.rate))

assert exact <= np.exp(-one.rate) * (1 + 1e-12)
assert exact > 2 * np.exp(-2 * one.rate)

# %%
rng = np.random.default_rng(5)
ts = np.linspace(0, 4, 161)
worst = {"s / m2": -np.inf, "2 s / m2 (printed)": -np.inf}
for _ in range(50):
    H = rng.normal(size=(3, 3))
    H -= (np.linalg.eigvals(H).real.max() + rng.uniform(0.1, 1.0)) * np.eye(3)
    c = lyapunov_certificate(H=H)
    flow = np.asarray(jax.vmap(lambda t, H=H: expm(t * H))(jnp.asarray(ts)))
    size = np.linalg.norm(flow, ord=2, axis=(1, 2)) ** 2  # over all starts
    for name, rate in zip(worst, (c.rate, 2 * c.rate), strict=True):
        excess = size / (c.m2 / c.m1 * np.exp(-rate * ts))
        worst[name] = max(worst[name], float(excess.max()))
print("largest |y|^2 over its bound, 50 random H:", worst)

assert worst["s / m2"] <= 1 + 1e-9

# %% [markdown]
# ## 3. Which steps contract
#
# One step of Euler's method multiplies $y$ by $I + \tau H$, one of a Runge–Kutta method by
# $R(\tau H)$. The paper asks for $\|I + \tau H\| \le \vartheta < 1$. In which norm? Not the plain
# one: the first row of $I + \tau H$ of a companion matrix is $(1, \tau, 0, 0)$, so its 2-norm
# exceeds 1 for every step. A norm adapted to $H$ will do; in that of its modes the norm is the
# spectral radius.

# %%
H = np.asarray(slow.perturbation_matrix(0.0, sample.q, sample.v, sample.w))
# The derivatives in units of the fastest root, or they would not be comparable.
unit = np.diag(20.0 ** -np.arange(4.0))
H = unit @ H @ np.linalg.inv(unit)
weights = {"plain": np.eye(4), "Lyapunov": lyapunov_certificate(H=H).m, "modes": modal_weight(H)}
steps = np.linspace(1e-4, 0.16, 321)
norms = {
    method: {
        name: np.array([weighted_norm(step_matrix(H, h, solver), weight) for h in steps])
        for name, weight in weights.items()
    }
    for method, solver in (("Euler", diffrax.Euler()), ("RK4", RK4()))
}
limits = {
    method: {version: jaxdae.step_limit(H, solver, version=version).limit for version in versions}
    for method, solver, versions in (
        ("Euler", diffrax.Euler(), ("spectral", "lyapunov")),
        ("RK4", RK4(), ("spectral", "lyapunov")),
    )
}
print("largest steps that contract [s]:", limits)
print("least plain norm:", {name: float(x["plain"].min()) for name, x in norms.items()})

assert min(x["plain"].min() for x in norms.values()) > 1
assert np.isclose(limits["Euler"]["spectral"], 2 / 20.0, rtol=1e-6)
assert all(x["lyapunov"] <= x["spectral"] for x in limits.values())

# %%
figure, axes = style.new_axes(2, title="Norm of one step's matrix, roots -20, -16, -10, -6 1/s")
for ax, (method, curves) in zip(axes.flat, norms.items(), strict=True):
    style.draw_lines(ax, steps, np.stack(list(curves.values()), axis=1), list(curves))
    ax.axhline(1.0, color=style.QUIET, linewidth=1.0)
    ax.axvline(limits[method]["spectral"], color=style.FAILURE, linestyle=":", label="limit")
    ax.set_ylim(0.5, 2.0)
    ax.set_ylabel(f"norm, {method}")
style.finish(axes, xlabel="step [s]")
display(figure)

# %% [markdown]
# The limit is sharp. Faster gains (fastest root -200 1/s), and the motion of the program: just
# inside the spectral limit the violation stays where the error of the method puts it, just
# outside the run breaks. `simulate` warns of such a step beforehand, with the limit.

# %%
fast = servo_with(200.0)
h_fast = np.asarray(fast.perturbation_matrix(0.0, sample.q, sample.v, sample.w))
methods = {"Euler": diffrax.Euler(), "Heun": diffrax.Heun(), "RK4": RK4()}
rows, panels = [], {}
for name, solver in methods.items():
    limit = jaxdae.step_limit(h_fast, solver).limit
    for part in (0.9, 1.03):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run, f = drive(fast, sample, float(part * limit), 600, solver)
        assert any("beyond the step limit" in str(x.message) for x in warned) == (part > 1)
        rows.append((name, part, float(part * limit), float(np.nanmax(f)), bool(run.success)))
        panels.setdefault(f"|f| {name} [m²]", {})[f"{part:g} of the limit"] = f
        broken = not run.success or np.nanmax(f) > 0.1
        assert broken == (part > 1), (name, part)
rows = [(*row[:-1], "yes" if row[-1] else "no") for row in rows]
print(table(("method", "step / limit", "step [s]", "largest |f| [m^2]", "reached the end"), rows))

figure = plot_series(np.arange(601), panels, log=list(panels), title="Inside and outside the limit")
figure.axes[-1].set_xlabel("steps")
display(figure)

# %% [markdown]
# ## 4. The control law as printed
#
# The paper carries the derivatives out: $u = (\Phi - g_j^5 s^j) / (2 c\, s \sin\varphi\, k_a/L)$
# (eq. 5.7), with a list of coefficients. `jaxdae.models.mirror` holds them as printed, and as
# differentiation gives them. At one state:

# %%
x = jnp.array([0.7, -1.3, 2.1, 0.9])
wrong = {name: c for name, c in coefficients(mirror, x).items() if c.slip}
rows = [(name, float(c.printed), float(c.correct), c.slip) for name, c in wrong.items()]
print(table(("coefficient", "printed", "derivative", "slip"), rows))

assert len(wrong) == 7
assert all(not np.isclose(c.printed, c.correct) for c in wrong.values())


# %% [markdown]
# Besides, the denominator of eq. 5.7 lacks $k_M = 1/(m l^2)$. The corrected formula is the
# servo-constraint, to round-off; the printed one is a different control.


# %%
class Law(eqx.Module):
    """Eq. 5.7, as printed or corrected, with the `Phi` of a servo-constraint."""

    servo: jaxdae.ServoConstraint
    printed: bool

    def __call__(self, t, q, v, w):
        wanted = self.servo.stabilizer(t, q, v, w, self.servo.perturbations(t, q, v, w))[0]
        # s = s0 + s1 sin(rate t) and its derivatives
        k, rate = jnp.arange(5), mirror.source_rate
        s = mirror.source_amplitude * rate**k * jnp.sin(rate * t + k * jnp.pi / 2)
        s = s.at[0].add(mirror.source_mean)
        state = jnp.concatenate([q, v, w])
        return voltage(mirror, state, s, wanted, printed=self.printed)[None]


@eqx.filter_jit
def voltages(*args):
    """Voltages of the two laws and of the servo-constraint [V]."""
    return jnp.concatenate([law(*args) for law in (corrected, printed, slow)])


corrected, printed = Law(slow, False), Law(slow, True)
differences = []
for t in np.linspace(0.0, 6.0, 13):
    near = mirror.program_state(t)
    noise = jnp.asarray(rng.normal(scale=0.1, size=4))
    *laws, servo = voltages(t, near.q + noise[:1], near.v + noise[1:2], near.w + noise[2:])
    differences.append([abs(float(u - servo)) for u in laws])
print("largest difference from the servo-constraint [V]:", np.max(differences, axis=0))

assert np.max(differences, axis=0)[0] < 1e-8
assert np.min(differences, axis=0)[1] > 1e-3

# %%
results = {
    name: drive(law, off, 0.01, 300, RK4())[1]
    for name, law in (("corrected", corrected), ("printed", printed))
}
held = {name: float(f[-1]) if np.isfinite(f[-1]) else np.inf for name, f in results.items()}
print("violation after 3 s [m^2]:", held)

assert held["corrected"] < 1e-4
assert held["printed"] > 100 * held["corrected"]

plot_series(
    0.01 * np.arange(301), {"|f| [m²]": results}, log=["|f| [m²]"], title="Eq. 5.7 as control law"
)

# %% [markdown]
# ## 5. First integrals: Kepler's motion
#
# A first integral is a constraint that the equations satisfy by themselves, $\dot I = 0$; only
# the computer violates it. All vector fields with the integral $I$ that attract to its value
# $I_0$ are
#
# $$
# \dot x = X(x) + F^{+}\,\Phi(I - I_0), \qquad F = \partial I/\partial x, \qquad F^{+} = F^\top (F
# F^\top)^{-1}
# $$
#
# plus anything tangential. Runge–Kutta, 60 steps in an orbit, eccentricity 0.3, 200 orbits:
# plain; with energy and angular momentum stabilized; and with the Laplace vector too.

# %%
ORBITS, STEPS = 200, 60
orbit, inner = Kepler(), jaxdae.Multipliers()
begin, period = orbit.start_state(), float(orbit.period())
cases = {
    "plain": inner,
    "energy, momentum": StabilizedIntegrals.at(begin, orbit.energy_and_momentum, 1.0, inner=inner),
    "all four": StabilizedIntegrals.at(begin, orbit.all_integrals, 1.0, inner=inner, rcond=1e-6),
}
drift, position = {}, {}
for name, formulation in cases.items():
    run = jaxdae.simulate(
        orbit, formulation, begin, t1=ORBITS * period, dt=period / STEPS, solver=RK4(),
        saveat=diffrax.SaveAt(ts=jnp.arange(ORBITS + 1) * period), max_steps=ORBITS * STEPS + 8,
    )  # fmt: skip
    values = np.asarray(jax.vmap(orbit.all_integrals)(run.ts, run.q, run.v))
    drift[name] = np.abs(values - values[0])[1:]
    position[name] = np.linalg.norm(np.asarray(run.q - begin.q), axis=1)[1:]
names = ("energy", "momentum", "Laplace x", "Laplace y")
rows = [(k, *(float(x) for x in drift[k].max(axis=0)), float(position[k].max())) for k in cases]
print(table(("stabilized", *(f"{x}, largest drift" for x in names), "position [m]"), rows))

half = ORBITS // 2
energy = {name: x[:, 0] for name, x in drift.items()}
assert energy["plain"][-1] > 1.8 * energy["plain"][half]  # it goes on
for name in ("energy, momentum", "all four"):
    assert energy[name].max() < 1e-2 * energy["plain"].max()
    assert energy[name][half:].max() < 1.1 * energy[name][:half].max()  # it has ended
    assert position[name].max() < 0.1 * position["plain"].max()
assert drift["all four"][:, 3].max() < 1e-2 * drift["energy, momentum"][:, 3].max()

# %%
panels = {
    "energy drift [m²/s²]": energy,
    "Laplace y drift [-]": {name: x[:, 3] for name, x in drift.items()},
    "position error [m]": position,
}
figure = plot_series(np.arange(1, ORBITS + 1), panels, log=list(panels), title="Kepler's motion")
figure.axes[-1].set_xlabel("orbits")
display(figure)

# %% [markdown]
# Stabilized integrals keep the shape of the orbit, and with the Laplace vector its direction.
# They say nothing of the place on it: the phase goes on drifting, more slowly.
#
# ## What holds, and what does not
#
# - **Holds**: the construction of the control; relative degree 4.
# - **Does not hold**: the rate $2s/m_2$. It is $s/m_2$ with the paper's bounds.
# - **Holds, in the right norm**: the condition on the step. In the plain norm no step meets it.
#   The spectral limit is sharp.
# - **Slips in print**: the sum of eq. 0.10 lacks $\alpha_0 y$. Seven coefficients; $k_M$ missing
#   in the denominator of eq. 5.7; as printed the law does not hold the program. Eq. 5.6 has
#   $g_{41}^4 b^4 s^4 u$ for $g_{14}^4 b^4 s^1 u$. In the first equation of section 5 the second
#   term needs the opposite sign, or eq. 5.1 does not follow from it.
# - **Holds**: stabilized integrals stay bounded where the plain run drifts, at equal steps.
