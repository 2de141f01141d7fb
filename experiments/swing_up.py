"""Three ways to swing up a pole whose cart is moved by a crank: learned, predicted, planned.

    python experiments/swing_up.py [--plants 16] [--train 4000] [--plan 200]

A pole hangs from a cart that a crank moves through a rod: a closed loop, with a bounded torque on
the crank as the only input and soft stops before its dead centres. Three controllers are asked 50
times a second and are judged on the same plants and starts, which none of them has met, over the
same time, by the same cost:

1. a policy trained by gradients on fresh starts and on plants that differ by up to 20 %;
2. model predictive control, whose model is the nominal plant;
3. an optimal trajectory of the nominal plant by IPOPT, which leaves a part of the torque to the
   time-varying linear regulator that follows it; at its end that becomes the one of the upright
   position.

Starts are near to hanging at rest, not there: prediction finds no direction that helps from it. The
parameters of the first and the inputs of the third are those of `docs/data/swing_up.json`;
`--train` and `--plan` find them anew. A claim that the run contradicts ends it with an error.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from claims import block, Claim, finish, listed, options
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae.control import Sampled
from jaxdae.optimal_control import Bounds, optimize_trajectory
from jaxdae.solvers import RK4
from jaxdae.systems import Points
from jaxdae.tuning import Stochastic

TORQUE = 4.0  # at most [N m]
PLANNED_TORQUE = 2.8  # what a plan may use of it [N m]
PERIOD, T1 = 0.02, 4.0  # of samples; of a run [s]
PLANNED, INTERVALS = 2.4, 30  # time of the planned motion [s], and intervals of its input
SPREADS = (0.0, 0.1, 0.2)  # of masses and lengths; the last one is trained on
DATA = Path(__file__).parents[1] / "docs" / "data" / "swing_up.json"
HANGING = np.array([0.0, np.pi, 0.0, 0.0])  # theta, phi and their rates
LAW = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))


class CrankCart(jaxdae.System):
    r"""A pole on a cart that a crank moves through a rod; `q = (theta, s, x, y)`.

    Crank angle `theta` from the vertical, cart at `(s, 0)`, bob of the pole at `(x, y)`; crank pin
    at `(r sin theta, r cos theta)`. Rod and pole are without mass.

        T = (I theta'^2 + m_c s'^2 + m_b (x'^2 + y'^2)) / 2
        V = m_b g y + k max(|theta| - theta_s, 0)^2 / 2
        f = ((s - r sin theta)^2 + (r cos theta)^2 - l^2, (x - s)^2 + y^2 - L^2) = 0

    The dead centres are at `theta = +-pi/2`, behind the soft stops.

    Args:
        crank: length r [m].
        rod: length l [m].
        pole: length L [m].
        inertia: of the crank, I [kg m^2].
        cart: mass m_c [kg].
        bob: mass m_b [kg].
        gravity: g [m/s^2].
        stop: angle at which the stops begin, theta_s [rad].
        stiffness: of the stops, k [N m/rad].
    """

    crank: float = 0.5
    rod: float = 1.2
    pole: float = 0.5
    inertia: float = 0.05
    cart: float = 0.5
    bob: float = 0.2
    gravity: float = 9.81
    stop: float = 1.1
    stiffness: float = 100.0

    def kinetic_energy(self, t, q, v):
        bob = self.bob * (v[2] ** 2 + v[3] ** 2)
        return 0.5 * (self.inertia * v[0] ** 2 + self.cart * v[1] ** 2 + bob)

    def potential_energy(self, t, q):
        beyond = jnp.maximum(jnp.abs(q[0]) - self.stop, 0.0)
        return self.bob * self.gravity * q[3] + 0.5 * self.stiffness * beyond**2

    def position_constraints(self, t, q):
        across, up = q[1] - self.crank * jnp.sin(q[0]), self.crank * jnp.cos(q[0])
        pole = (q[2] - q[1]) ** 2 + q[3] ** 2 - self.pole**2
        return jnp.stack([across**2 + up**2 - self.rod**2, pole])

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(q).at[0].set(u[0])

    def points(self, t, q) -> Points:
        pin = self.crank * jnp.stack([jnp.sin(q[0]), jnp.cos(q[0])])
        cart = jnp.stack([q[1], jnp.zeros_like(q[1])])
        corners = 0.06 * jnp.array([[1.5, 1.0], [-1.5, 1.0], [-1.5, -1.0], [1.5, -1.0]])
        return Points(
            {"shaft": jnp.zeros_like(pin), "pin": pin, "cart": cart, "bob": q[2:4]},
            links=(("shaft", "pin", "cart", "bob"),),
            outlines={"cart": cart + corners},
            trace=("bob",),
            fixed=("shaft",),
        )

    def state(self, z) -> jaxdae.State:
        """The state with crank and pole at `z = (theta, phi, theta', phi')`; phi from upright."""

        def place(angles):
            theta, phi = angles
            s = self.crank * jnp.sin(theta)
            s = s + jnp.sqrt(self.rod**2 - (self.crank * jnp.cos(theta)) ** 2)
            return jnp.stack([theta, s, s + self.pole * jnp.sin(phi), self.pole * jnp.cos(phi)])

        return jaxdae.State(*jax.jvp(place, (z[:2],), (z[2:],)))


def angles(q, v):
    """`z = (theta, phi, theta', phi')` as sensors of two angles give it; phi within +-pi."""
    along, up = q[2] - q[1], q[3]
    rate = ((v[2] - v[1]) * up - v[3] * along) / (along**2 + up**2)
    return jnp.stack([q[0], jnp.arctan2(along, up), v[0], rate])


def cost(t, q, v, w, u):
    """Residuals: pole upright, crank in the middle, both slow, little torque."""
    theta, phi, theta_rate, phi_rate = angles(q, v)
    pole = jnp.stack([jnp.sin(phi), jnp.cos(phi) - 1.0, 0.1 * phi_rate])
    return jnp.concatenate([pole, jnp.stack([theta, 0.1 * theta_rate]), 0.1 * u])


class TrainedPolicy(eqx.Module):
    r"""A network that swings the pole up, and a linear law that holds it; bounded by tanh.

        u = U tanh(g K z + (1 - g) network(theta, theta' / 5, sin phi, cos phi, phi' / 5)),
        g = 1 / (1 + exp(-20 (cos phi - b)))

    Args:
        network: from 5 numbers to 1.
        place: b.
        top: K U / 10, shape (4,).
    """

    network: eqx.nn.MLP
    place: Any
    top: Any

    def __init__(self, key):
        self.network = eqx.nn.MLP(5, "scalar", 16, 2, jnp.tanh, key=key)
        self.place, self.top = jnp.array(0.85), jnp.array([0.2, 1.0, 0.14, 0.23])

    def __call__(self, t, q, v, w, memory):
        z = angles(q, v)
        theta, phi, theta_rate, phi_rate = z
        seen = jnp.stack([theta, theta_rate / 5, jnp.sin(phi), jnp.cos(phi), phi_rate / 5])
        share = jax.nn.sigmoid(20.0 * (jnp.cos(phi) - self.place))
        wanted = share * 10.0 * (self.top @ z) + (1.0 - share) * self.network(seen)
        return TORQUE * jnp.tanh(wanted)[None], memory


class Following(eqx.Module):
    """A planned motion, followed by a time-varying linear regulator; the last gains stay.

    Args:
        motion: z at the samples, shape (samples, 4); the last row is the goal.
        inputs: shape (samples, 1).
        gains: shape (samples, 1, 4).
    """

    motion: Any
    inputs: Any
    gains: Any

    def __call__(self, t, q, v, w, memory):
        k = jnp.clip(jnp.round(t / PERIOD), 0, self.motion.shape[0] - 1).astype(int)
        off = angles(q, v) - self.motion[k]
        off = off.at[1].set(jnp.arctan2(jnp.sin(off[1]), jnp.cos(off[1])))
        return jnp.clip(self.inputs[k] - self.gains[k] @ off, -TORQUE, TORQUE), memory


class Constant(eqx.Module):
    """One input all the time."""

    u: Any

    def __call__(self, t, q, v, w):
        return self.u


def _next(z, u):
    """Z of the nominal plant one sample later."""
    run = jaxdae.simulate(
        CrankCart(),
        LAW,
        CrankCart().state(z),
        t1=PERIOD,
        dt=PERIOD / 2,
        solver=RK4(),
        controller=Constant(u),
        throw=False,
        backend="plain",
        adjoint=diffrax.DirectAdjoint(),
    )
    return angles(run.q[-1], run.v[-1])


@jax.jit
def _linear(z, u):
    """Matrices of the steps from sample to sample, at many states."""
    return jax.vmap(jax.jacfwd(_next, argnums=(0, 1)))(z, u)


def regulators(z, u):
    """Gains of the samples of a motion by Riccati's recursion, and last those of its goal."""
    Q, R = PERIOD * jnp.diag(jnp.array([1.0, 1.0, 0.01, 0.01])), PERIOD * 0.01 * jnp.eye(1)
    A, B = _linear(jnp.concatenate([z, jnp.zeros((1, 4))]), jnp.concatenate([u, jnp.zeros((1, 1))]))
    goal = jaxdae.dlqr(A[-1], B[-1], Q, R)

    def before(P, at):
        A, B = at
        K = jnp.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        return Q + A.T @ P @ (A - B @ K), K

    _, gains = jax.lax.scan(before, goal.P, (A[:-1], B[:-1]), reverse=True)
    return jnp.concatenate([gains, goal.K[None]])


def planned(inputs, nodes) -> Following:
    """The planned inputs with the motion of the nominal plant and the gains along it.

    Args:
        inputs: of the intervals [N m], shape (intervals,).
        nodes: z at their beginnings, shape (intervals, 4).
    """
    each = round(PLANNED / INTERVALS / PERIOD)
    u = jnp.asarray(inputs)[:, None]

    def samples(z, u):
        """The samples in an interval; each begins anew where the plan does."""
        return jax.lax.scan(lambda z, _: (_next(z, u), z), z, length=each)[1]

    z = jax.jit(jax.vmap(samples))(jnp.asarray(nodes), u).reshape(-1, 4)
    u = jnp.repeat(u, each, axis=0)
    gains = regulators(z, u)
    z, u = (jnp.concatenate([x, jnp.zeros((1, x.shape[1]))]) for x in (z, u))
    return Following(z, u, gains)


def plan(iterations: int = 300):
    """The optimal trajectory of the nominal plant from hanging to upright, by IPOPT."""
    nominal = CrankCart()
    return optimize_trajectory(
        nominal,
        LAW,
        nominal.state(jnp.asarray(HANGING)),
        t1=PLANNED,
        inputs=1,
        intervals=INTERVALS,
        cost=lambda t, q, v, w, u: jnp.sum(cost(t, q, v, w, u) ** 2),
        goal=nominal.state(jnp.zeros(4)),
        bounds=Bounds(u=(-PLANNED_TORQUE, PLANNED_TORQUE)),
        optimizer="ipopt",
        iterations=iterations,
        tolerance=1e-8,
    )


class Predicting(eqx.Module):
    """Model predictive control with the nominal model and the angles of the plant.

    Args:
        inner: the policy.
    """

    inner: Any

    @property
    def memory(self):
        return self.inner.memory

    def __call__(self, t, q, v, w, memory):
        model = CrankCart().state(angles(q, v))
        return self.inner(t, model.q, model.v, w, memory)


def predictive(horizon: float = 1.0, nodes: int = 25, iterations: int = 3) -> Predicting:
    """Model predictive control by Gauss-Newton."""
    return Predicting(
        jaxdae.mpc(
            CrankCart(),
            LAW,
            cost,
            horizon=horizon,
            nodes=nodes,
            bounds=(-TORQUE, TORQUE),
            terminal=lambda t, q, v, w: cost(t, q, v, w, jnp.zeros(1)),
            iterations=iterations,
            dt=PERIOD,
        )
    )


def plant(scales) -> CrankCart:
    """The plant whose lengths and masses are the nominal ones times six factors."""
    nominal, names = CrankCart(), ("crank", "rod", "pole", "inertia", "cart", "bob")
    return CrankCart(**{x: getattr(nominal, x) * scales[i] for i, x in enumerate(names)})


def drawn(key, count: int, width: float = SPREADS[-1]):
    """Factors of plants, shape (count, 6), and starts z near to hanging, shape (count, 4)."""
    plants, starts = jax.random.split(key)
    scales = 1.0 + width * jax.random.uniform(plants, (count, 6), minval=-1.0)
    spread = jnp.array([0.1, 0.2, 0.1, 0.2])
    return scales, HANGING + spread * jax.random.normal(starts, (count, 4))


def motion(controller, scales, z, t1=T1):
    """A run of a plant from a start, under a controller."""
    system = plant(scales)
    return jaxdae.simulate(
        system,
        LAW,
        system.state(z),
        t1=t1,
        dt=PERIOD / 2,
        solver=RK4(),
        controller=controller,
        throw=False,
    )


def costs(run):
    """The integral of the squared residuals, by samples."""
    each = jax.vmap(lambda q, v, u: jnp.sum(cost(0.0, q, v, (), u) ** 2))
    return PERIOD * jnp.sum(each(run.q, run.v, run.u)[:-1:2])


def loss(policy: TrainedPolicy, key):
    """The mean cost of two seconds of fresh plants and starts, half of them anywhere."""
    near, anywhere = jax.random.split(key)
    scales, z = drawn(near, 64)
    wide = jnp.array([0.4, 2.0, 1.0, 3.0]) * jax.random.normal(anywhere, (32, 4))
    z = jnp.concatenate([z[:32], wide])

    def one(scales, z):
        return costs(motion(Sampled(policy, PERIOD), scales, z, t1=2.0))

    return jnp.mean(jax.vmap(one)(scales, z))


def trained(steps: int, seed: int = 0):
    """The policy by gradients on fresh plants and starts; the best of its validations."""
    return jaxdae.tune(
        Stochastic(loss),
        TrainedPolicy(jax.random.key(seed)),
        optimizer=optax.chain(
            optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, steps))
        ),
        steps=steps,
        key=jax.random.key(seed),
        validation=Stochastic(loss),
        validation_every=50,
    )


def stored_policy(policy: TrainedPolicy) -> dict[str, Any]:
    """What `docs/data/swing_up.json` holds of a policy."""
    return {"policy": ravel_pytree(eqx.filter(policy, eqx.is_array))[0].tolist()}


def stored_plan(found) -> dict[str, Any]:
    """What it holds of a plan."""
    z = jax.vmap(angles)(found.states.q, found.states.v)[:-1]
    return {"inputs": found.inputs.ravel().tolist(), "nodes": z.tolist()}


def stored_policy_of(data: dict[str, Any]) -> TrainedPolicy:
    """The policy of what is stored."""
    arrays, rest = eqx.partition(TrainedPolicy(jax.random.key(0)), eqx.is_array)
    _, unravel = ravel_pytree(arrays)
    return eqx.combine(unravel(jnp.asarray(data["policy"])), rest)


def controllers(data: dict[str, Any]) -> dict[str, Any]:
    """The three policies by name."""
    return {
        "trained": stored_policy_of(data),
        "predictive": predictive(),
        "planned": planned(data["inputs"], data["nodes"]),
    }


class Judged(NamedTuple):
    """What became of the runs of one controller.

    Args:
        angle: of the pole from upright at the end [rad], shape (plants,).
        rate: its rate there [rad/s].
        crank: largest crank angle [rad].
        cost: integral of the squared residuals.
        torque: largest one [N m].
        milliseconds: of one control step.
    """

    angle: Any
    rate: Any
    crank: Any
    cost: Any
    torque: Any
    milliseconds: float

    @property
    def success(self):
        """Upright and slow at the end, and never at a dead centre; a run that failed is none."""
        at_rest = (np.abs(self.angle) < 0.1) & (np.abs(self.rate) < 0.5)
        return at_rest & (self.crank < np.pi / 2)


def judged(policy, scales, z) -> Judged:
    """Runs of all plants under one controller.

    Args:
        policy: of `jaxdae.Sampled`.
        scales: factors of the plants, shape (plants, 6).
        z: starts, shape (plants, 4).
    """

    @eqx.filter_jit
    def one(policy, scales, z):
        run = motion(Sampled(policy, PERIOD), scales, z)
        _, phi, _, rate = angles(run.q[-1], run.v[-1])
        return phi, rate, jnp.abs(run.q[:, 0]).max(), costs(run), jnp.abs(run.u).max()

    found = np.array([one(policy, *x) for x in zip(scales, z, strict=True)])
    angle, rate, crank, cost_of_run, torque = found.T
    return Judged(angle, rate, crank, cost_of_run, torque, milliseconds(policy))


def milliseconds(policy, calls: int = 50) -> float:
    """The median time of one compiled control step."""
    start = CrankCart().state(jnp.asarray(HANGING))
    memory = getattr(policy, "memory", ())
    step = eqx.filter_jit(policy)
    times = []
    for _ in range(calls + 1):
        began = time.perf_counter()
        jax.block_until_ready(step(jnp.zeros(()), start.q, start.v, start.w, memory))
        times.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times[1:]))


def report(found: dict[float, dict[str, Judged]]) -> list[str]:
    """The tables, one for each spread of the plants."""
    headings = ("controller", "upright", "cost", "cost where upright", "torque [N m]", "step [ms]")
    lines = []
    for width, runs in found.items():
        rows = [
            (
                name,
                f"{x.success.sum()} of {x.success.size}",
                f"{np.mean(x.cost):.3g}",
                f"{np.mean(x.cost[x.success]):.3g}" if x.success.any() else "-",
                f"{np.max(x.torque):.3g}",
                f"{x.milliseconds:.3g}",
            )
            for name, x in runs.items()
        ]
        lines += block(f"Masses and lengths within {width:.0%} of the nominal ones", headings, rows)
    return lines


def claims(found: dict[float, dict[str, Judged]]) -> list[Claim]:
    """What the runs show."""
    known, unknown = found[SPREADS[0]], found[SPREADS[-1]]
    shares = {name: np.mean(x.success) for name, x in known.items()}
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    wide = {name: np.mean(x.success) for name, x in unknown.items()}
    largest = max(np.max(x.torque) for runs in found.values() for x in runs.values())
    slowest = max(known, key=lambda x: known[x].milliseconds)
    return [
        Claim(
            f"Of the nominal plant each controller brings more than half of the starts "
            f"upright ({said}).",
            min(shares.values()) > 0.5,
        ),
        Claim(
            f"Policy and prediction bring more than three quarters of the plants within "
            f"{SPREADS[-1]:.0%} upright ({wide['trained']:.0%} and {wide['predictive']:.0%}).",
            min(wide["trained"], wide["predictive"]) > 0.75,
        ),
        Claim(
            f"A plan with a linear regulator around it does not: it loses more than half of them "
            f"({1 - wide['planned']:.0%}).",
            wide["planned"] < 0.5,
        ),
        Claim(f"No torque is beyond {TORQUE:g} N m ({largest:.6g}).", bool(largest <= TORQUE)),
        Claim(f"Prediction takes the longest step ({slowest}).", slowest == "predictive"),
    ]


def main() -> None:
    """Judge, print and write."""
    chosen = options(
        __doc__,
        "results/swing_up",
        plants=(16, "plants that are judged"),
        train=(0, "steps of a new training (4000); 0 takes the stored parameters"),
        plan=(0, "iterations of a new plan (200); 0 takes the stored one"),
    )
    data = json.loads(DATA.read_text())
    if chosen.train:
        data |= stored_policy(trained(chosen.train).params)
    if chosen.plan:
        data |= stored_plan(plan(chosen.plan))
    policies = controllers(data)
    found = {}
    for width in SPREADS:
        plants = drawn(jax.random.key(7), chosen.plants, width)
        found[width] = {name: judged(x, *plants) for name, x in policies.items()}
    sentences = claims(found)
    text = "\n".join([*report(found), listed(sentences)])
    result = {
        f"{width:g}": {
            name: {part: np.asarray(value).tolist() for part, value in x._asdict().items()}
            for name, x in runs.items()
        }
        for width, runs in found.items()
    }
    finish(chosen.out, text, {"spreads": result, "data": data}, sentences)


if __name__ == "__main__":
    main()
