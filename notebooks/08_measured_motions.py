# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Measured motions: a real double pendulum
#
# Angles and torques of a double pendulum with geared drives, measured by the DFKI Robotics
# Innovation Center (BSD 3-Clause License, `experiments/data/double_pendulum`). What are its
# parameters and its friction, and how well does the model predict a motion it was not fitted to?

# %%
# %matplotlib inline
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display

import jaxdae
from jaxdae.identification import Calibration, Channel, read_record, UnknownStart, validate
from jaxdae.plotting import plot_predictions, plot_residuals, style
from jaxdae.solvers import RK4
from jaxdae.tuning import Positive

jax.config.update("jax_enable_x64", True)
FOLDER = Path(jaxdae.__file__).parents[1] / "experiments" / "data" / "double_pendulum"

# %% [markdown]
# ## 1. The records
#
# Columns have the names of the channels, and units in their headings. Encoders count from where
# they were switched on: each record has zeros of its own, some hundredths of a radian off.

# %%
zero = Calibration(0.0, 0.1, per_record=True)
channels = {
    "shoulder": Channel(lambda run: run.q[:, 0], "rad", zero),
    "elbow": Channel(lambda run: run.q[:, 1], "rad", zero),
}
inputs = ["shoulder torque", "elbow torque"]
fitted_one, held_out = (
    read_record(FOLDER / f"{name}.csv", channels, inputs=inputs).between(0.0, 5.0)
    for name in ("143339", "143601")
)
figure, axes = style.new_axes(2, 2)
for column, record in zip(axes.T, (fitted_one, held_out), strict=True):
    for name, x in record.outputs.items():
        column[0].plot(record.ts, x, label=f"{name} [rad]")
    for name, x in zip(inputs, record.inputs.T, strict=True):
        column[1].plot(record.ts, x, label=f"{name} [N m]")
    column[0].set_title(record.name)
    column[1].set_xlabel("time t [s]")
for ax in axes[:, 0]:
    ax.legend(fontsize="small")
display(figure)

# %% [markdown]
# ## 2. The model
#
# Motions determine five numbers of the links, not the seven of two masses, centers and moments of
# inertia and a rotor: $J_1$, $J_2$, $J_r$, $G_1$ and $G_2$. In both joints there is dry friction
# $c \tanh(v / v_s)$. A velocity $v_s$ that is too small makes it stiff: its rate $c / (v_s J)$
# times the step has to be below about two. Here it is:


# %%
class DoublePendulum(jaxdae.System):
    """Links of 0.2 and 0.3 m."""

    J_1: Any = 0.055
    J_2: Any = 0.05
    J_r: Any = 0.005
    G_1: Any = 0.22
    G_2: Any = 0.16
    dry_1: Any = 0.2
    dry_2: Any = 0.15

    def kinetic_energy(self, t, q, v):
        both = v[0] + v[1]
        own = self.J_1 * v[0] ** 2 + self.J_2 * both**2 + self.J_r * v[1] ** 2
        return 0.5 * own + self.G_2 * 0.2 * jnp.cos(q[1]) * v[0] * both

    def potential_energy(self, t, q):
        return -9.81 * (self.G_1 * jnp.cos(q[0]) + self.G_2 * jnp.cos(q[0] + q[1]))

    def force(self, t, q, v, w, u):
        return u - jnp.stack([self.dry_1, self.dry_2]) * jnp.tanh(v / 0.1)


STEP = 0.01


def energy(v):
    """Kinetic energy where both angles are zero."""
    return DoublePendulum().kinetic_energy(0.0, jnp.zeros(2), v)


mass = jax.jit(jax.hessian(energy))(jnp.zeros(2))
rate = np.abs(np.linalg.eigvals(np.linalg.solve(mass, np.diag([0.2, 0.15]) / 0.1))).max()
print(f"rate of the friction at rest times the step: {rate * STEP:.2f}")
assert rate * STEP < 2.0

# %% [markdown]
# ## 3. The fit
#
# The motion begins at rest at an unknown angle. The noise is what the encoders and the model leave.


# %%
def build(params):
    """What is simulated with these parameters."""
    return DoublePendulum(**params), jaxdae.Multipliers()


def experiment(record):
    """From rest where the encoders say, but for their zeros."""
    q = [record.outputs["shoulder"][0], record.outputs["elbow"][0]]
    return record.experiment(UnknownStart(jaxdae.State(q, [0.0, 0.0]), v=0.0), sigma=0.02)


names = ("J_1", "J_2", "J_r", "G_1", "G_2", "dry_1", "dry_2")
guess: dict[str, Any] = {name: Positive(float(getattr(DoublePendulum(), name))) for name in names}
guess["J_r"] = jnp.array(0.001)  # may be zero, whose logarithm a search would never reach
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what is left is no noise, see below
    fit = jaxdae.identify(
        build, guess, experiment(fitted_one), channels=channels, dt=STEP, solver=RK4(), steps=30
    )
print(fit.summary())
display(plot_residuals(fit))
assert 0.15 < fit["dry_1"] < 0.35
assert 0.1 < fit["dry_2"] < 0.25

# %% [markdown]
# What is left bends: it is what the model does not have, not noise of the encoders.
#
# ## 4. A motion it has not seen
#
# Of the other record nothing is estimated but the zeros of its encoders and the states at the
# beginning of every second, from a fifth of a second before. Without friction the model is lost.
# Its zeros are arrays, as the numbers of the fit are: one program then makes both predictions.

# %%
none = {"dry_1": jnp.array(0.0), "dry_2": jnp.array(0.0)}
found = {
    name: validate(
        build,
        params,
        experiment(held_out),
        channels=channels,
        horizon=1.0,
        past=0.2,
        dt=STEP,
        solver=RK4(),
    )
    for name, params in (
        ("fitted", fit.params),
        ("without friction", {**fit.params, **none}),
    )
}
print(found["fitted"])
display(plot_predictions(found))
for name in channels:
    assert found["fitted"].rms(name)[0] < 0.5 * found["without friction"].rms(name)[0]

# %% [markdown]
# `experiments/measured_pendulum.py` fits more records and predicts beside the laboratory's model.
