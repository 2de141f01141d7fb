# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Identification: parameters from measured motions
#
# A pendulum of unknown length and friction is released from a known angle. An encoder reads its
# angle, with noise, and misses some samples. What are the parameters, how well are they known, and
# what can no encoder say?

# %%
# %matplotlib inline
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display

import jaxdae
from jaxdae.identification import Channel, Experiment, Measurement, repetitions, UnknownStart
from jaxdae.models import CartesianPendulum
from jaxdae.plotting import plot_residuals, style

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## 1. Model and data
#
# The pendulum in Cartesian coordinates, with air friction $D = d\,|v|^2 / 2$ and the constraint
# $x^2 + y^2 = l^2$, which moves with the length that is sought. The record has 80 samples in 4 s,
# noise of 0.01 rad, and every ninth sample is missing.


# %%
class Damped(CartesianPendulum):
    """With air friction."""

    damping: float = 0.1

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v


FORMULATION = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))


def build(params):
    """What is simulated with these parameters."""
    return Damped(**params), FORMULATION


def angle(run):
    """What the encoder reads [rad]."""
    return jnp.arctan2(run.q[:, 0], -run.q[:, 1])


reference = Damped(length=1.2, damping=0.3)
start = jaxdae.State(*reference.released_from(1.0))
run = jaxdae.simulate(reference, FORMULATION, start, t1=4.0, dt=0.05)
rng = np.random.default_rng(0)
samples = np.asarray(angle(run))[1:] + 0.01 * rng.normal(size=80)
samples[::9] = np.nan
experiment = Experiment(
    np.asarray(run.ts)[1:],
    {"angle": Measurement(samples)},
    lambda system: jaxdae.State(*system.released_from(1.0)),
)

# %% [markdown]
# ## 2. The fit
#
# `identify` minimizes $\chi^2 = \sum_i (y_i - c_i(p, x_0))^2 / \sigma^2$ by Levenberg and
# Marquardt's method. The start is a function of the system, because a known angle lies elsewhere
# for another length. The noise level is not given, and is estimated.

# %%
guess = {"length": jaxdae.tuning.Positive(1.0), "damping": jaxdae.tuning.Positive(0.1)}
channels = {"angle": Channel(angle, unit="rad")}
result = jaxdae.identify(build, guess, experiment, channels=channels, dt=0.05)
print(result.summary())
off = np.abs(result.values - [0.3, 1.2]) / result.standard_errors
assert result.names == ("damping", "length")
assert (off < 3).all()
assert abs(result.noise["angle"] - 0.01) < 0.002

# %% [markdown]
# What is left of the data: no bend, no drift, most points in the band of twice the noise.

# %%
display(plot_residuals(result))

# %% [markdown]
# ## 3. Are the standard errors right?
#
# Four hundred records with new noise, fitted in one batch. A correct standard error covers the
# parameter within two of itself in 95.4 % of them, and with four hundred this share itself is known
# to about one per cent.

# %%
repeated = repetitions(result, 400)
for name, part, spread, stated in zip(
    repeated.names,
    repeated.within(2.0),
    repeated.values.std(axis=0),
    repeated.standard_errors.mean(axis=0),
    strict=True,
):
    print(f"{name}: within two standard errors {100 * part:.1f} %,")
    print(f"    spread of the estimates {spread:.3g}, stated on average {stated:.3g}")
assert np.all(np.abs(repeated.within(2.0) - 0.95) <= 0.03)

# %% [markdown]
# Estimates less the truth in units of their own standard errors: normal, of deviation one.

# %%
figure, axes = style.new_axes(1, 2)
z = np.linspace(-4.0, 4.0, 200)
deviations = (repeated.values - result.values) / repeated.standard_errors
for ax, name, values in zip(axes[0], repeated.names, deviations.T, strict=True):
    ax.hist(values, bins=24, density=True, color=style.PALETTE[0], alpha=0.5)
    ax.plot(z, np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi), color=style.PALETTE[1], label="normal")
    ax.set_title(name)
    ax.set_xlabel("error / standard error")
    ax.legend(fontsize="small")
display(figure)

# %% [markdown]
# ## 4. What no encoder can say
#
# Mass and friction of this pendulum enter only as $d / m$: both together are not identifiable from
# angles. The fit says so, finds the ratio, and claims no standard error for either.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    both = jaxdae.identify(
        build, guess | {"mass": jaxdae.tuning.Positive(1.5)}, experiment, channels=channels, dt=0.05
    )
print(both.unidentifiable[0])
assert "damping and mass enter only as their ratio" in both.unidentifiable[0]
assert any("do not determine all parameters" in str(x.message) for x in caught)
assert np.isinf(both.standard_error("mass"))
assert abs(both["damping"] / both["mass"] - result["damping"]) < 1e-4

# %% [markdown]
# ## 5. A start that is not known
#
# At rest (`v=0.0`: known exactly) at an unknown angle: one unknown more, along the circle, found
# with the others. It takes some of what the samples say: the standard errors are larger.

# %%
begun = UnknownStart(jaxdae.State([0.9, -0.7], [0.0, 0.0]), v=0.0)
free = jaxdae.identify(
    build,
    guess,
    Experiment(experiment.ts, experiment.measurements, begun),
    channels=channels,
    dt=0.05,
)
print(free.summary())
amplitude = jnp.arctan2(free.starts[0].q[0], -free.starts[0].q[1])
assert abs(amplitude - 1.0) < 0.02
# At rest, and on the circle of the length that is found with it.
assert np.allclose(free.starts[0].v, 0.0, atol=1e-12)
assert np.isclose(np.linalg.norm(free.starts[0].q), free["length"], rtol=1e-9)
assert abs(free["length"] - 1.2) < 3 * free.standard_error("length")
assert len(free.start_errors) == 1
assert np.all(free.standard_errors > result.standard_errors)
