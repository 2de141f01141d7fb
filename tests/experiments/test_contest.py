"""Contests of controllers: where the best law is known, tuning finds it; losses are counted."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import State, System
from jaxdae.control import PD
from jaxdae.formulations import Multipliers
from jaxdae.solvers import RK4
from jaxdae.tuning import Positive


class Cart(System):
    """A mass on a line, pushed."""

    mass: float | jax.Array = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(q) if u is None else u


def _cost(run):
    density = run.q[:, 0] ** 2 + run.u[:, 0] ** 2
    # A cart that leaves the line is lost.
    return jnp.where(jnp.abs(run.q).max() < 5.0, jnp.trapezoid(density, run.ts), jnp.nan)


def _back(t, q):
    return -q


def _law(p):
    return PD(_back, p["K_P"], p["K_D"])


def _task(contest, end=12.0, dt=0.05):
    """Carts of random masses, from random places."""
    random = {"mass": contest.Uniform(1.0, 1.0), "place": contest.Uniform(-3.0, 3.0, (1,))}

    def start(design, plant):
        return State(plant["place"], jnp.zeros(1), jnp.zeros(0))

    def plant(design, plant):
        return Cart(design.mass * plant["mass"])

    settings = {"t1": end, "dt": dt, "solver": RK4()}
    return contest.Task(Cart(1.0), random, plant, start, Multipliers(), _cost, settings)


BEST = {"K_P": 1.0, "K_D": np.sqrt(2.0)}


@pytest.mark.slow
def test_a_pd_law_tuned_on_the_regulators_cost_is_the_regulator(experiment):
    """Of `q'' = u` and the cost `q^2 + u^2` it is `u = -q - sqrt(2) q'`, at `sqrt(2) q0^2`."""
    contest = experiment("contest")
    task, first = _task(contest), {"K_P": Positive(1.5), "K_D": Positive(1.0)}
    found = contest.contest(
        task,
        [contest.Candidate("LQR", BEST, _law), contest.Candidate("PD", first, _law, 60)],
        contest.Size(2, 3),
    )  # fmt: skip
    rows, places = found.rows, np.asarray(task.plants(jax.random.key(0), 2)["place"])
    exact = np.sqrt(2.0) * places[:, 0] ** 2
    # Trapezoids of 0.05 s: 1e-3 of the integral, and what is left after 12 s is 1e-7.
    np.testing.assert_allclose(rows["LQR"].training, exact, rtol=2e-3)
    np.testing.assert_allclose(rows["PD"].params["K_P"], 1.0, atol=0.03)
    np.testing.assert_allclose(rows["PD"].params["K_D"], np.sqrt(2.0), atol=0.03)
    # No law beats the regulator by more than the quadrature's error.
    assert (rows["PD"].training > 0.998 * rows["LQR"].training).all()
    assert [row.tuned for row in rows.values()] == [0, 2]
    # The pictures show the plant that costs the first candidate most.
    hardest = np.abs(found.held_out["place"]).argmax()
    assert found.runs["PD"].q[0] == found.held_out["place"][hardest]


@pytest.fixture
def costly(experiment):
    """A contest's rows of known costs, one of them lost."""
    contest = experiment("contest")
    held_out = np.array([4.0, 1.0, np.nan, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    first = contest.Row("LQR", 0, (), np.ones(4), np.full(9, 1.5))
    return contest, {"LQR": first, "PD": first._replace(
        name="PD", tuned=2, held_out=held_out, risk=contest.TAIL
    )}  # fmt: skip


def test_tables_have_mean_worst_quarter_and_worst_and_count_losses(costly):
    contest, rows = costly
    pd = rows["PD"]
    # Of the eight that are left: the two worst, and the worst.
    assert (pd.mean, pd.tail, pd.worst, pd.lost) == (1.75, 3.5, 4.0, 1)
    named = [dict(zip(contest.HEADINGS, line, strict=True)) for line in contest.lines(rows)]
    assert [x["worst quarter"] for x in named] == ["1.5", "3.5"]
    assert [x["for"] for x in named] == ["-", "mean of the worst 25 %"]
    assert named[1]["better than the first"] == "5 of 9"
    assert contest.lines(rows)[1][8] == 1
    assert contest.recorded(rows)["PD"]["worst"] == 4.0
    assert np.isnan(pd._replace(held_out=np.full(3, np.nan)).mean)


def test_objectives_are_the_librarys_over_plants_with_starts_of_their_own(experiment):
    """The worst of the costs is the worst place's; a design of its own is run."""
    contest = experiment("contest")
    task = _task(contest, end=1.0, dt=0.1)
    plants = task.plants(jax.random.key(3), 4)
    law = contest.Candidate("PD", BEST, _law, risk="worst")
    heavy = law._replace(design=lambda p: Cart(3.0 * p["K_P"]))
    for candidate, mass in ((law, 1.0), (heavy, 3.0)):
        aim = contest.objective(task, candidate, plants)
        assert aim.members.shape == (1, 4, 1)
        costs = aim.costs(BEST)
        assert aim(BEST) == costs.max()
        assert int(costs.argmax()) == int(np.abs(plants["place"]).argmax())
        assert aim.built(BEST, 0)[0].mass == mass


RIG, ARM = "LQR, weights tuned, rig too", "LQR, weights tuned, arm too"
# Of a run that bears its claims out: costs of the laws, their parameters, and what else is read;
# then rows that are spoilt, and the claims that they contradict.
NUMBERS = {
    "ball_beam_controllers": (
        {
            "LQR": 1.0, "PD": 1.0, "LQR, weights tuned": 0.99, "LQR + network": 0.95, RIG: 0.7,
            f"{RIG}, for the worst": 0.69,
        },
        {"lever": 0.03, "ratio": 50.0},
        {"own": {"LQR": np.ones(5), "LQR + network": np.full(5, 0.97)}},
        [
            ({"PD": np.append(np.ones(19), np.nan)}, [0]),
            # The mean alone is less, one plant costs more.
            ({RIG: np.append(np.full(19, 0.7), 1.1)}, [2]),
        ],
    ),
    "five_bar": (
        {"LQR": 1.0, "PD": 0.8, "LQR, weights tuned": 0.75, "LQR + network": 0.6},
        {},
        {"course": SimpleNamespace(error=1e-12)},
        [({"PD": np.append(np.full(19, 0.8), np.nan)}, [1])],
    ),
    "mirror_tuning": (
        {
            "LQR": 1.0, "LQR, weights tuned": 0.6, "LQR + network": 0.5, "servo-constraint": 100.0,
            "servo-constraint, tuned": 0.8, ARM: 0.3, "LQR + network, arm too": 0.25,
        },
        {"length": np.array(0.21)},
        {
            "course": SimpleNamespace(error=1e-9),
            "runs": {
                "LQR + network": SimpleNamespace(u=np.sin(np.arange(4000.0))),
                "LQR, weights tuned": SimpleNamespace(u=np.zeros(4000)),
            },
        },
        [
            ({"LQR": np.append(np.ones(19), np.nan)}, [1]),
            ({"LQR + network, arm too": np.full(20, 0.4), ARM: np.full(20, 0.4)}, [3]),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", NUMBERS)
def test_claims_of_contests_are_held_against_their_numbers(experiment, script):
    Row, claims = experiment("contest").Row, experiment(script).claims
    costs, params, more, spoilt = NUMBERS[script]
    for changes, contradicted in [({}, []), *spoilt]:
        kept = {name: np.full(20, x) for name, x in costs.items()}
        rows = {x: Row(x, 3, params, y, changes.get(x, y)) for x, y in kept.items()}
        found = [i for i, x in enumerate(claims({"rows": rows, **more})) if not x.holds]
        assert found == contradicted


def test_what_is_learnt_by_heart_contradicts_the_claim_of_the_five_bar(experiment):
    """Much better on the plants it was tuned on."""
    Row, (costs, _, more, _) = experiment("contest").Row, NUMBERS["five_bar"]
    rows = {name: Row(name, 3, {}, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    rows["LQR + network"] = rows["LQR + network"]._replace(training=np.full(20, 0.4))
    claims = experiment("five_bar").claims({"rows": rows, **more})
    assert [x.holds for x in claims] == [True, True, False]
