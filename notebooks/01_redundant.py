# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stabilization of redundantly constrained dynamic systems
#
# R. G. Mukharlyamov, C. T. Deressa, *Stabilization of redundantly constrained dynamic system*,
# 2015 ("Redundant"). The paper claims that
#
# 1. Baumgarte's stabilization works with any symmetric positive definite gains, one for each
#    constraint, and a Lyapunov function proves it;
# 2. a *modified Lagrange equation* (a penalty method with such gains) needs no independent
#    constraints and no regular configuration;
# 3. on a two-link manipulator the first fails at the singular configuration, at t = 4.067105 s,
#    and the second runs through it for 20 s, asymptotically stable.
#
# We derive each statement, run it, and say what holds: the first two here, the third in
# `01_redundant_two_link.py`.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display
from jax.scipy.linalg import expm

import jaxdae
from jaxdae.analysis import perturbation_matrix
from jaxdae.models import PAPER_RUNS, TwoLinkManipulator
from jaxdae.plotting import style
from jaxdae.solvers import RK4
from jaxdae.tables import gain_text, table

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## 1. Generalized Baumgarte stabilization and its certificate
#
# In the library's signs ($M a + J^\top\lambda = f$, $J a + \gamma = \ddot\phi$) the paper's eq.
# 16 asks for
#
# $$\ddot\phi = -K_D\,\dot\phi - K_P\,\phi, \qquad K_D, K_P \text{ symmetric positive definite},$$
#
# instead of $\ddot\phi = 0$. Its Lyapunov function (eqs. 18, 19) is
#
# $$
# V = \tfrac12\|\dot\phi + \varepsilon\phi\|^2
# + \tfrac12\,\phi^\top (K_P + \varepsilon K_D - \varepsilon^2 I)\,\phi,
# \qquad
# \dot V = -\varepsilon\,\phi^\top K_P\,\phi - \dot\phi^\top (K_D - \varepsilon I)\,\dot\phi
# $$
#
# under two conditions, $K_D - \varepsilon I > 0$ and
# $K_P + \varepsilon K_D - \varepsilon^2 I > 0$. The second one is superfluous:
# $K_P + \varepsilon K_D - \varepsilon^2 I = K_P + \varepsilon\,(K_D - \varepsilon I)$ is a sum of
# positive definite matrices wherever the first holds. A thousand random gains agree.

# %%
rng = np.random.default_rng(2014)
least = np.inf
for _ in range(1000):
    size = int(rng.integers(1, 5))
    roots = rng.normal(size=(2, size, size))
    K_D, K_P = roots @ np.swapaxes(roots, 1, 2) + 1e-3 * np.eye(size)
    eps = rng.uniform(0, 1) * np.linalg.eigvalsh(K_D)[0]  # the first condition
    second = K_P + eps * K_D - eps**2 * np.eye(size)
    least = min(least, np.linalg.eigvalsh(second)[0] / np.linalg.eigvalsh(K_P)[0])
print("least eigenvalue of the second condition, relative to that of K_P:", least)

assert least >= 1 - 1e-9  # it is never below that of K_P alone

# %% [markdown]
# `lyapunov_certificate` finds the $\varepsilon$ with the best guaranteed rate. A certificate is a
# bound, so it cannot promise more than the slowest root of $\mu^2 + K_D\mu + K_P$ delivers.

# %%
rows, certificates = [], {}
for run in (PAPER_RUNS[0], PAPER_RUNS[3]):
    proof = jaxdae.lyapunov_certificate(np.array(run.K_D), np.array(run.K_P))
    H = perturbation_matrix(run.formulation().stabilization)
    slowest = -np.linalg.eigvals(H).real.max()
    certificates[f"gains of Fig. {run.figure}"] = (proof, H)
    gains = gain_text(run.K_D), gain_text(run.K_P)
    rows.append((f"Fig. {run.figure}", *gains, proof.largest_eps, proof.eps, proof.rate, slowest))
    assert 0 < proof.rate <= slowest
heads = ("gains", "K_D [1/s]", "K_P [1/s^2]", "eps below", "eps", "rate [1/s]", "slowest root")
print(table(heads, rows))

# %%
figure, axes = style.new_axes(2, title="Lyapunov function of eq. 18 along exact solutions")
ts = np.linspace(0, 3, 301)
for ax, (name, (proof, H)) in zip(axes.flat, certificates.items(), strict=True):
    starts = np.random.default_rng(7).normal(size=(6, 4))
    flow = np.asarray(jax.vmap(lambda t, H=H: expm(t * H))(jnp.asarray(ts)))
    # y = (phi, phi_dot), both constraints; 2 V = y^T weight y
    y = np.einsum("tij,sj->tsi", flow, starts)
    norm = np.sqrt(np.einsum("tsi,ij,tsj->ts", y, proof.weight, y))
    lines = ax.plot(ts, norm / norm[0], color=style.PALETTE[0], linewidth=0.8)
    lines[0].set_label("six random starts")
    ax.plot(ts, np.exp(-proof.rate * ts), "--", color=style.FAILURE, label="guaranteed")
    style.logarithmic(ax)
    ax.set_ylabel(f"√(V / V₀), {name}")
    assert (norm <= norm[0] * np.exp(-proof.rate * ts)[:, None] * (1 + 1e-9)).all()
style.finish(axes)
display(figure)

# %% [markdown]
# ## 2. Redundant constraints: which part of the multipliers matters
#
# With dependent constraints $A = J M^{-1} J^\top$ is singular, and (eq. 6)
#
# $$
# \lambda = A^{+} (J M^{-1} f + \gamma - \ddot\phi) + (I - A^{+}A)\,u, \qquad u
# \text{ arbitrary.}
# $$
#
# The paper calls $J^\top (I - A^{+}A)\,u$ the force of *non-ideal* constraints (eq. 13), and its
# proposition 1 says that constraints are ideal if and only if $(I - A^{+}A)\,u = 0$. But this
# force is zero for every $u$: from $A z = 0$ follows $z^\top J M^{-1} J^\top z = 0$, hence
# $J^\top z = 0$. Multipliers of dependent constraints are not unique; forces and accelerations
# are. We state every constraint of the manipulator below twice over and compute.

# %%
arm = TwoLinkManipulator()


class Twice(jaxdae.System):
    """The two-link manipulator with every constraint stated twice, the second time tripled."""

    arm: TwoLinkManipulator

    def kinetic_energy(self, t, q, v):
        return self.arm.kinetic_energy(t, q, v)

    def potential_energy(self, t, q):
        return self.arm.potential_energy(t, q)

    def position_constraints(self, t, q):
        phi = self.arm.position_constraints(t, q)
        return jnp.concatenate([phi, 3 * phi])


twice = Twice(arm)
start = jaxdae.State(*arm.start())
d = jaxdae.evaluate(twice, 0.0, start.q, start.v)
A = d.jac @ jnp.linalg.solve(d.mass, d.jac.T)
projector = jnp.eye(4) - jnp.linalg.pinv(A, rtol=1e-10) @ A
u = jnp.asarray(rng.normal(size=(4, 100)))
null = projector @ u
print("rank of A:", np.linalg.matrix_rank(A, tol=1e-10), "of", len(A))
print("largest (I - A+ A) u:    ", float(jnp.abs(null).max()))
print("largest force J^T of it: ", float(jnp.abs(d.jac.T @ null).max()))

assert jnp.abs(null).max() > 1
assert jnp.abs(d.jac.T @ null).max() < 1e-9

# %% [markdown]
# `Multipliers` finds out at the start that constraints are dependent, and takes the multipliers of
# least norm; `solve=FullRankSolve()`, which assumes that they are not, is refused. The penalty form
# does not mind them. The accelerations are those of the constraints stated once.

# %%
stabilization = PAPER_RUNS[0].formulation().stabilization
pair = jnp.tile(jnp.array([1.0, 1.0]), 2)
doubled = jaxdae.Baumgarte(K_D=20.0 * pair, K_P=100.0 * pair)
try:
    independent = jaxdae.formulations.FullRankSolve()
    jaxdae.simulate(twice, jaxdae.Multipliers(doubled, independent), start, t1=0.1)
except ValueError as error:
    print(error)
else:
    raise AssertionError("dependent constraints were not refused")

once = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))
least_norm = jaxdae.Multipliers(doubled, solve=jaxdae.MinimumNormSolve())
a = [f.vector_field(s, 0.0, start, None).v for s, f in ((arm, once), (twice, least_norm))]
lam = [f.multipliers(s, 0.0, start, None) for s, f in ((arm, once), (twice, least_norm))]
print("\naccelerations [rad/s^2]:", *(np.asarray(x) for x in a))
print("multipliers [N]:        ", *(np.asarray(x) for x in lam))

assert np.allclose(a[0], a[1], rtol=1e-9)

# The constraints phi and 3 phi weigh as much as phi alone with a factor of 1 + 9 times alpha.
a = [
    jaxdae.Penalty(alpha, gains).vector_field(s, 0.0, start, None).v
    for s, alpha, gains in ((arm, 1e3, once.stabilization), (twice, 1e2, doubled))
]
print("penalty form [rad/s^2]: ", *(np.asarray(x) for x in a))

assert np.allclose(a[0], a[1], rtol=1e-9)

# %% [markdown]
# ## 3. The modified Lagrange equation
#
# A violation is given mass, damping and stiffness $\alpha$, $\alpha K_D$, $\alpha K_P$ of its own
# (eq. 30, in our signs):
#
# $$
# (M + J^\top \alpha J)\, a = f - J^\top \alpha\,(\gamma + K_D\dot\phi + K_P\phi), \qquad
# \lambda \approx \alpha\,(\ddot\phi + K_D\dot\phi + K_P\phi).
# $$
#
# The paper reaches it through eq. 27, which follows from the energies of eq. 25 and reads
# $J^\top(\alpha\ddot\phi + K_D\dot\phi + K_P\phi)$, and goes on with eq. 28, which has $\alpha$
# before the bracket. They are one with damping $\alpha K_D$ and stiffness $\alpha K_P$ in eq. 25,
# and with the matrices that the paper allows (diagonal ones) both dissipate. Its runs, its
# $\lambda$ (eq. 31), and `Penalty` are eq. 28. For full matrices only eq. 27 is safe: $\alpha K_P$
# need not be symmetric, and the violation may feed on itself although $\alpha$, $K_D$, $K_P$ are
# all positive definite.

# %%
mass, weight = np.diag([13.0, 1.0]), np.array([[27.0, -13.0], [-13.0, 7.0]])
K_D, K_P = 0.4 * np.eye(2), np.array([[17.0, 13.0], [13.0, 22.0]])
growth = {}
for name, factor in (("eq. 27", np.eye(2)), ("eq. 28", weight)):
    # Two coordinates that must vanish: (M + alpha) y'' + K_D y' + K_P y = 0, or alpha times those.
    block = np.linalg.solve(mass + weight, factor)
    H = np.block([[np.zeros((2, 2)), np.eye(2)], [-block @ K_P, -block @ K_D]])
    growth[name] = float(np.linalg.eigvals(H).real.max())
print("least eigenvalues:", *(np.linalg.eigvalsh(x)[0] for x in (weight, K_D, K_P)))
print("growth of the violation [1/s]:", growth)

assert growth["eq. 27"] < 0 < growth["eq. 28"]

# %% [markdown]
# In eq. 28 $\phi$ obeys $\ddot\phi + K_D\dot\phi + K_P\phi = \lambda/\alpha$: it does not tend to
# zero, but to what the reaction prescribes. The error falls like $1/\alpha$.

# %%
alphas = jnp.logspace(1, 7, 13)


@jax.jit
def penalty_error(alpha):
    """Largest distance from the exact motion on [0, 0.45] s [rad]."""
    formulation = jaxdae.Penalty(alpha, stabilization)
    run = jaxdae.simulate(arm, formulation, start, t1=0.45, dt=0.001, solver=RK4(), throw=False)
    q, _ = jax.vmap(arm.exact_motion)(run.ts)
    return jnp.abs(run.q - q).max(), jnp.abs(run.violation.phi).max()


errors, violations = jax.vmap(penalty_error)(alphas)
slope = np.polyfit(np.log(alphas[4:11]), np.log(errors[4:11]), 1)[0]
print("slope of log error against log alpha:", slope)

assert -1.05 < slope < -0.95

# %%
figure, axes = style.new_axes(
    1, title="Penalty form on [0, 0.45] s: error against the exact motion"
)
ax = axes[0, 0]
ax.plot(alphas, errors, "o-", label="angles [rad]")
ax.plot(alphas, violations, "s-", color=style.PALETTE[1], label="violation [m]")
ax.plot(alphas, errors[0] * alphas[0] / alphas, "--", color=style.QUIET, label="1 / α")
ax.set_xscale("log")
style.logarithmic(ax)
ax.set_ylabel("largest error")
style.finish(axes, xlabel="penalty factor α [kg]")
display(figure)

# %% [markdown]
# ## What holds, and what does not
#
# - **Holds**: stability of the generalized Baumgarte equations for all symmetric positive
#   definite gains, with the paper's Lyapunov function. Its second condition follows from the
#   first.
# - **Holds**: the modified Lagrange equation needs no independent constraints.
# - **Does not hold**: "asymptotically stable trajectories" of the modified Lagrange equation. The
#   violation tends to $\lambda/\alpha$, filtered by the gains, not to zero.
# - **Empty**: proposition 1. The "non-ideal" force of eq. 13 is zero for every $u$.
# - **Two equations**: 28 is 27 with damping and stiffness times $\alpha$; for full matrices only 27
#   dissipates.
