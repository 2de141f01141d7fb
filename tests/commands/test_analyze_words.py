"""`jaxdae analyze`: what it writes, what it refuses, and what it says of systems of users."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxdae
from helpers.roots import as_roots, PENDULUM, rested, sorted_roots, system_of, TIGHT
from jaxdae.cli import main
from jaxdae.commands.analyze import solvers
from jaxdae.commands.choice import chosen_formulation as formulation_of_options
from jaxdae.commands.report import report, warnings
from jaxdae.models import get_model


@pytest.mark.slow
def test_the_result_is_complete_and_plain_json(analyzed, capsys):
    run = analyzed("ball-beam", capsys=capsys)
    assert json.loads(json.dumps(run.result, allow_nan=False)) == run.result
    assert list(run.result["step_limits"]) == list(solvers([]))
    linear = run.result["linearization"]
    assert len(linear["state"]) == len(linear["A_full"]) == len(linear["B_full"]) == 6
    # A_full is what the roots were computed from.
    raw = np.linalg.eigvals(np.array(linear["A_full"]))
    found = as_roots(run.result["spectrum"]["roots"])
    np.testing.assert_allclose(np.abs(sorted_roots(raw)), np.abs(found), atol=1e-7, rtol=1e-9)
    assert run.result["options"]["model"] == "ball-beam"
    # By their names, in the table of the rest with units and in that of the regulator.
    for words in (
        "actuator current 0.022455 A",
        "input voltage 0.058383 V",
        "voltage -1.36118 2",
    ):
        assert words in run.text


@pytest.mark.slow
def test_the_certificate_bounds_the_violation(analyzed, capsys):
    """`|exp(H t)| <= growth exp(-rate t)`, and likewise for the squared norm."""
    kept = analyzed(*PENDULUM, capsys=capsys).result["stabilization"]
    b, linear = kept["baumgarte_certificate"], kept["linear_certificate"]
    H = np.array([[0.0, 1.0], [-100.0, -30.0]])
    ts = np.linspace(0, 1, 50)
    norms = np.array([np.linalg.norm(scipy.linalg.expm(H * t), 2) for t in ts])
    assert np.all(norms <= b["growth"] * np.exp(-b["rate"] * ts))
    assert np.all(norms**2 <= linear["m2"] / linear["m1"] * np.exp(-linear["rate"] * ts))
    assert 0 < b["eps"] < b["largest_eps"] == 30


@pytest.mark.parametrize(
    ("name", "given", "kind", "gains"),
    [
        # As `jaxdae simulate` chooses it: the gains that tuning starts from.
        ("slider-crank", {"formulation": "multipliers"}, "Multipliers", {"K_D": 20.0}),
        ("slider-crank", {"K_D": 50.0}, "Penalty", {"K_D": 50.0, "K_P": 1e4, "alpha": 1e4}),
        ("motor", {"formulation": "penalty"}, "Penalty", {"K_P": 100.0, "alpha": 10.0}),
    ],
)
def test_gains_change_only_themselves(name, given, kind, gains):
    options = dict.fromkeys(("formulation", "K_D", "K_P", "Gamma", "alpha")) | given
    chosen = formulation_of_options(get_model(name), SimpleNamespace(**options), 1, 0)
    assert type(chosen).__name__ == kind
    for gain, value in gains.items():
        holder = chosen if gain == "alpha" else chosen.stabilization
        # Tuning starts from exponentials of logarithms.
        np.testing.assert_allclose(getattr(holder, gain), value, rtol=1e-14)


@pytest.mark.slow
def test_single_precision_says_what_it_cannot_tell(tmp_path, drawn):
    """A root of 0.57 beside one of -1.4e4."""
    words = ["ball-beam-simplified", "--dtype", "float32", "--out", str(tmp_path)]
    try:
        assert main(["analyze", *words]) == 0
    finally:
        jax.config.update("jax_enable_x64", True)  # which the other tests need
    result = json.loads((tmp_path / "analysis.json").read_text())
    assert drawn == {"roots.png"}
    assert result["spectrum"]["verdict"] == "undecided"
    assert "to the imaginary axis are not distinguished from those on it" in result["warnings"][0]


class Towers(jaxdae.System):
    """Two inverted pendulums for small angles; the input reaches only the first."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return -0.5 * (q[0] ** 2 + 4 * q[1] ** 2)

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(q).at[0].add(u[0])


@pytest.mark.slow
def test_the_canonical_equations_have_the_same_roots():
    """A formulation with a state of its own, `(q, p)`, and gains that are not Baumgarte's."""
    stabilization = jaxdae.LinearStabilization(K10=-100.0, K11=-30.0)
    form = jaxdae.Hamiltonian(stabilization=stabilization)
    found, rest = rested(system_of("pendulum"), form, q=(0.0, -1.0))
    decay, swing = np.roots([1, 30, 100]), np.sqrt(9.81)
    np.testing.assert_allclose(
        sorted_roots(found.field.roots), sorted_roots([*decay, 1j * swing, -1j * swing]), rtol=TIGHT
    )
    assert found.stabilizer is not None
    assert found.stabilizer.baumgarte is None
    words = " ".join(report(found, get_model("pendulum"), rest).split())
    assert "STABILIZATION: Hamiltonian, K10 = -100, K11 = -30 root" in words


@pytest.mark.slow
def test_an_uncontrollable_unstable_mode_is_named(capsys):
    found, rest = rested(Towers(), jaxdae.Multipliers(), inputs=1)
    unstable, unreached = warnings(found)
    # Roots ±1 of the first tower, ±2 of the second.
    assert (
        unstable
        == "the equilibrium is unstable: its root 2 makes a deviation grow e-fold in 0.5 s."
    )
    assert "reach 2 of 4 directions" in unreached
    assert "nothing moves the roots 2, -2, those of q2, d(q2)/dt" in unreached
    assert "No feedback makes it asymptotically stable." in unreached
    text = " ".join(report(found, get_model("kepler"), rest).split())
    assert "no regulator: the pair (A, B) is not stabilizable: no feedback moves the root 2" in text
