"""Thirteen parameters of a rotary pendulum from noisy records, beside SciPy's and CasADi's fits.

A motor turns an arm about the vertical axis; at its end hangs a pendulum (Furuta's). Measured are
both angles and the motor's current, in two records of 6 s under different inputs. All codes fit the
same residuals from the same first guess:

- ours: `jaxdae.identify`;
- SciPy's `least_squares` over diffrax (adaptive Dopri8, compiled), with its own differences as
  derivatives, and with derivatives by forward differentiation through diffrax;
- SciPy's `least_squares` over CasADi's CVODES with CasADi's own sensitivities.

Times are those of processors: a machine that is busy otherwise changes them little.

    python benchmarks/identification.py
"""

import time
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import harness
import jax
import jax.numpy as jnp
import numpy as np
from competitors.base import MissingCodeError
from scipy.optimize import least_squares

import jaxdae
from jaxdae.identification import Channel, Experiment, Identification, Measurement
from jaxdae.tables import table

REFERENCE = {
    "arm_inertia": 2.3e-3, "pendulum_inertia": 1.2e-3, "coupling": 1.5e-3, "gravity_moment": 0.092,
    "arm_damping": 1.1e-3, "pendulum_damping": 1.6e-4, "arm_friction": 2.0e-3,
    "pendulum_friction": 3.0e-4, "motor_constant": 0.042, "resistance": 7.5, "cable": 4.0e-3,
    "cable_rest": 0.15, "offset": 0.03,
}  # fmt: skip
NOISE = {"arm": 2e-3, "pendulum": 2e-3, "current": 5e-3}
PLAIN = np.array([name in ("cable_rest", "offset") for name in REFERENCE])
TIMES = np.linspace(0.02, 6.0, 300)
# Velocity over which Coulomb's friction turns, and what excites each record: V, rad/s.
_TURN = 0.05
INPUTS = ((3.0, 2.0, 7.3), (4.5, 3.1, 1.7))
# Of a fit that is off the exact motion's by less than a tenth of a standard error.
STEP = 0.01
_FAILED = 1e4
_SETTINGS: dict[str, Any] = {"method": "trf", "x_scale": "jac", "xtol": 1e-8, "ftol": 1e-8}


class RotaryPendulum(jaxdae.System):
    r"""Arm and pendulum on a motor: coordinates `(theta, alpha)`, `alpha` from hanging down.

        T = (J_a + J_p sin^2 alpha) theta'^2 / 2 + K cos(alpha) theta' alpha' + J_p alpha'^2 / 2
        V = -G cos(alpha) + k_c (theta - theta_c)^2 / 2

    The motor's torque is `k i` with `i = (u - k theta') / R`.
    """

    arm_inertia: float
    pendulum_inertia: float
    coupling: float
    gravity_moment: float
    arm_damping: float
    pendulum_damping: float
    arm_friction: float
    pendulum_friction: float
    motor_constant: float
    resistance: float
    cable: float
    cable_rest: float
    offset: float

    def kinetic_energy(self, t, q, v):
        del t
        arm = (self.arm_inertia + self.pendulum_inertia * jnp.sin(q[1]) ** 2) * v[0] ** 2
        both = self.coupling * jnp.cos(q[1]) * v[0] * v[1]
        return 0.5 * arm + both + 0.5 * self.pendulum_inertia * v[1] ** 2

    def potential_energy(self, t, q):
        del t
        cable = 0.5 * self.cable * (q[0] - self.cable_rest) ** 2
        return cable - self.gravity_moment * jnp.cos(q[1])

    def dissipation(self, t, q, v):
        del t, q
        return 0.5 * (self.arm_damping * v[0] ** 2 + self.pendulum_damping * v[1] ** 2)

    def force(self, t, q, v, w, u):
        del t, q, w
        dry = jnp.stack([self.arm_friction, self.pendulum_friction]) * jnp.tanh(v / _TURN)
        return jnp.stack([self.motor_constant * self.current(v, u), 0.0]) - dry

    def current(self, v, u):
        return (u - self.motor_constant * v[0]) / self.resistance


class Voltage(eqx.Module):
    """Two tones [V]."""

    amplitude: float
    first: float
    second: float

    def __call__(self, t, q, v, w):
        del q, v, w
        return voltage(t, self.amplitude, self.first, self.second)


def voltage(t, amplitude, first, second):
    """Input of a record [V]."""
    return amplitude * (jnp.sin(first * t) + 0.6 * jnp.sin(second * t))


def shown(run: Any):
    """What the pendulum's encoder reads, which is not at zero where the pendulum hangs [rad]."""
    return run.q[:, 1] + run.system.offset


def current(run: Any):
    """The motor's current [A]."""
    return jax.vmap(run.system.current)(run.v, run.u)


CHANNELS = {
    "arm": Channel(lambda run: run.q[:, 0], unit="rad"),
    "pendulum": Channel(shown, unit="rad"),
    "current": Channel(current, unit="A"),
}
START = jaxdae.State([0.0, 0.0], [0.0, 0.0])
FORMULATION = jaxdae.Multipliers()


def build(params):
    """The system with these parameters."""
    return RotaryPendulum(**params), FORMULATION


def guess() -> dict:
    """First guess: every parameter off by about a quarter, what may be zero at zero."""
    signs = np.where(np.arange(13) % 2, 1.0, -1.0)
    off = {n: x * (1 + 0.25 * s) for (n, x), s in zip(REFERENCE.items(), signs, strict=True)}
    plain = {"cable_rest": jnp.array(0.0), "offset": jnp.array(0.0)}
    return {n: jaxdae.tuning.Positive(x) for n, x in off.items()} | plain


def records(seed: int = 0) -> list[Experiment]:
    """Two records of the reference with noise."""
    rng, made = np.random.default_rng(seed), []
    system = RotaryPendulum(**REFERENCE)
    for tones in INPUTS:
        controller = Voltage(*tones)
        run = jaxdae.simulate(
            system, FORMULATION, START, t1=6.0, saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
            controller=controller,
        )  # fmt: skip
        samples = {
            name: Measurement(
                np.asarray(channel.reading(run)) + NOISE[name] * rng.normal(size=TIMES.size),
                NOISE[name],
            )
            for name, channel in CHANNELS.items()
        }
        made.append(Experiment(TIMES, samples, START, controller=controller))
    return made


def fitted(experiments: list[Experiment]) -> Identification:
    """Our fit."""
    return jaxdae.identify(build, guess(), experiments, channels=CHANNELS, dt=STEP)


# What the others are given: unconstrained numbers, as ours fits them.


def unconstrained() -> np.ndarray:
    """First guess as logarithms, and two plain numbers."""
    first = jaxdae.tuning.resolve(guess())
    values = np.array([first[name] for name in REFERENCE])
    return np.where(PLAIN, values, np.log(np.where(PLAIN, 1.0, values)))


def stacked(experiments: list[Experiment]) -> np.ndarray:
    """All samples, by record, channel and time."""
    return np.stack([[e.measurements[n].values for n in CHANNELS] for e in experiments])


def scipy_over_diffrax(experiments, derivatives: str) -> Callable[[], np.ndarray]:
    """SciPy's fit over diffrax; `derivatives` are "2-point" or "forward"."""
    samples, tones = jnp.asarray(stacked(experiments)), jnp.asarray(INPUTS)
    noise = jnp.array(list(NOISE.values()))[:, None]

    def rate(t, y, args):
        p, tone = args
        system = RotaryPendulum(*p)
        u = voltage(t, *tone)
        d = jaxdae.evaluate(system, t, y[:2], y[2:], jnp.zeros(0), u)
        return jnp.concatenate([y[2:], jnp.linalg.solve(d.mass, d.force)])

    def residuals(x):
        p = jnp.where(PLAIN, x, jnp.exp(x))

        def one(tone, measured):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(rate), diffrax.Dopri8(), 0.0, 6.0, STEP, jnp.zeros(4), (p, tone),
                saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
                stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
                adjoint=diffrax.ForwardMode(), max_steps=20_000, throw=False,
            )  # fmt: skip
            y = jnp.asarray(solution.ys)
            current = (jax.vmap(voltage, (0, None, None, None))(TIMES, *tone) - p[8] * y[:, 2]) / p[
                9
            ]
            return (jnp.stack([y[:, 0], y[:, 1] + p[12], current]) - measured) / noise

        return jax.vmap(one)(tones, samples).ravel()

    value, jac = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    given: Any = "2-point" if derivatives == "2-point" else (lambda x: np.asarray(jac(x)))
    return lambda: (
        least_squares(lambda x: np.asarray(value(x)), unconstrained(), **_SETTINGS, jac=given).x
    )


def scipy_over_casadi(experiments) -> Callable[[], np.ndarray]:
    """SciPy's fit over CasADi's CVODES, with CasADi's forward sensitivities."""
    try:
        import casadi as ca
    except ImportError as error:
        raise MissingCodeError("casadi is not installed") from error
    y, x, tone, t = (ca.SX.sym(n, k) for n, k in (("y", 4), ("x", 13), ("tone", 3), ("t", 1)))
    names = list(REFERENCE)
    p = {n: x[i] if n in ("cable_rest", "offset") else ca.exp(x[i]) for i, n in enumerate(names)}
    u = tone[0] * (ca.sin(tone[1] * t) + 0.6 * ca.sin(tone[2] * t))
    current = (u - p["motor_constant"] * y[2]) / p["resistance"]
    inertia, pendulum, coupling = p["arm_inertia"], p["pendulum_inertia"], p["coupling"]
    sine, cosine = ca.sin(y[1]), ca.cos(y[1])
    mass = ca.vertcat(
        ca.horzcat(inertia + pendulum * sine**2, coupling * cosine),
        ca.horzcat(coupling * cosine, pendulum),
    )
    arm = (
        -2 * pendulum * sine * cosine * y[2] * y[3] + coupling * sine * y[3] ** 2
        - p["cable"] * (y[0] - p["cable_rest"]) - p["arm_damping"] * y[2]
        - p["arm_friction"] * ca.tanh(y[2] / _TURN) + p["motor_constant"] * current
    )  # fmt: skip
    swing = (
        pendulum * sine * cosine * y[2] ** 2 - p["gravity_moment"] * sine
        - p["pendulum_damping"] * y[3] - p["pendulum_friction"] * ca.tanh(y[3] / _TURN)
    )  # fmt: skip
    ode = ca.vertcat(y[2], y[3], ca.solve(mass, ca.vertcat(arm, swing)))
    problem = {"x": y, "t": t, "p": ca.vertcat(x, tone), "ode": ode}
    options = {"abstol": 1e-8, "reltol": 1e-8, "linear_multistep_method": "adams",
               "nonlinear_solver_iteration": "functional", "max_num_steps": 20000,
               "disable_internal_warnings": True, "show_eval_warnings": False}  # fmt: skip
    integrator = ca.integrator("run", "cvodes", problem, 0.0, list(TIMES), options)
    output = ca.vertcat(y[0], y[1] + p["offset"], current)
    read = ca.Function("read", [y, x, tone, t], [output]).map(TIMES.size)
    z, parts = ca.MX.sym("x", 13), []
    for tones, measured in zip(INPUTS, stacked(experiments), strict=True):
        states = integrator(x0=np.zeros(4), p=ca.vertcat(z, ca.DM(tones)))["xf"]
        many = lambda a: ca.repmat(a, 1, TIMES.size)  # noqa: E731
        shown = read(states, many(z), many(ca.DM(tones)), ca.DM(TIMES).T)
        noise = ca.repmat(ca.DM(list(NOISE.values())), 1, TIMES.size)
        parts.append(ca.vec(((shown - ca.DM(measured)) / noise).T))
    residuals = ca.vertcat(*parts)
    value = ca.Function("fit_residuals", [z], [residuals])
    jac = ca.Function("fit_derivatives", [z], [ca.jacobian(residuals, z)])

    def shown_or_failed(x):
        try:
            return np.asarray(value(x)).ravel()
        except RuntimeError:  # of a trial step to where the mass matrix is singular
            return np.full(residuals.numel(), _FAILED)

    derivatives: Any = lambda x: np.asarray(jac(x).full())  # noqa: E731
    return lambda: least_squares(shown_or_failed, unconstrained(), jac=derivatives, **_SETTINGS).x


def processor_seconds(call: Callable) -> float:
    """Time of processors of one call [s]; a busy machine changes it little."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Measure, print a table, write `results/identification.json`."""
    given = harness.arguments(__doc__, 5)
    experiments = records()
    builds = {
        "jaxdae": lambda: lambda: np.array(fitted(experiments).values),
        "SciPy over diffrax, 2-point": lambda: scipy_over_diffrax(experiments, "2-point"),
        "SciPy over diffrax, forward": lambda: scipy_over_diffrax(experiments, "forward"),
        "SciPy over CasADi CVODES": lambda: scipy_over_casadi(experiments),
    }
    calls, rows, first = {}, [], {}
    for name, make in builds.items():
        call, why_not = harness.attempt(make)
        if why_not is None:
            began = time.process_time()
            answer, why_not = harness.attempt(call)
            first[name] = (time.process_time() - began, answer)
        if why_not is None:
            calls[name] = call
        else:
            rows.append({"problem": "rotary pendulum", "code": name, "missing": why_not})
    times = {name: [] for name in calls}
    turns = [name for _ in range(given.repetitions) for name in calls]
    for name in harness.progress(turns, "fitting"):
        times[name].append(processor_seconds(calls[name]))
    result = fitted(experiments)
    order = [result.names.index(n) for n in REFERENCE]
    values, errors = result.values[order], result.standard_errors[order]
    for name, each in times.items():
        found = first[name][1]
        found = found[order] if name == "jaxdae" else np.where(PLAIN, found, np.exp(found))
        rows.append({
            "problem": "rotary pendulum", "code": name, "missing": None, "seconds": each,
            "first": first[name][0], **harness.spread(each),
            "ratio": harness.ratio(each, times["jaxdae"]),
            "off": float(np.abs((found - values) / errors).max()),
        })  # fmt: skip
    off = (values - np.array(list(REFERENCE.values()))) / errors
    print(result.summary())
    print(f"largest error of the estimate: {np.abs(off).max():.2f} standard errors")
    print(text(rows))
    harness.finish("identification", given, rows, "one fit, of the processors")


def text(rows: list[dict]) -> str:
    """The results as a table, and what is missing."""
    heads = {
        "code": "code", "first": "first call [s]", "median": "again [s]", "min": "least",
        "max": "largest", "ratio": "times ours", "off": "off ours [standard errors]",
    }  # fmt: skip
    complete = [[row[x] for x in heads] for row in rows if not row["missing"]]
    missing = [f"{row['code']}: {row['missing']}" for row in rows if row["missing"]]
    return "\n".join([table([*heads.values()], complete), *missing])


if __name__ == "__main__":
    harness.run(main)
