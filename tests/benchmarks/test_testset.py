"""Problems of the test set in the benchmarks reach the ends that were published."""

import diffrax
import numpy as np
import pytest

import jaxdae

NAMES = ("robertson", "akzo_nobel", "transistor_amplifier", "ring_modulator", "wheelset")


@pytest.fixture(scope="module")
def problems(benchmark):
    return benchmark("testset")


def error(equations, end):
    """Of what is published, relative to tolerances."""
    wanted = equations.end / equations.floor
    return np.max(np.abs(end - wanted) / (1 + np.abs(wanted)))


@pytest.mark.parametrize("name", NAMES)
def test_the_start_satisfies_the_equations(problems, name):
    equations = getattr(problems, name)()
    f = np.array(equations.rates(np, 0.0, equations.start))[equations.differential :]
    # Of index 2 velocities, which are none; else round-off of millivolts per kilohm and less.
    np.testing.assert_allclose(f, 0.0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tolerance"), [
    ("robertson", 1e-7), ("akzo_nobel", 1e-8), ("transistor_amplifier", 1e-6),
])  # fmt: skip
def test_this_library_reaches_the_published_ends(problems, name, tolerance):
    equations = getattr(problems, name)()
    dae, y, z = problems.declared(equations)
    control = diffrax.PIDController(rtol=tolerance, atol=equations.floor * tolerance)
    run = jaxdae.solve(
        dae, y, z, t1=equations.t1, stepsize_controller=control, saveat=diffrax.SaveAt(t1=True)
    )
    # The tolerance bounds the error of a step; damping of fast parts keeps it from growing.
    assert error(equations, equations.measured(problems.final(equations, run))) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_radau5_reaches_the_published_ends(benchmark, problems, name):
    """The equations as codes in C are given them; the long ones at a tolerance that suffices."""
    codes, base = benchmark("competitors.implicit_codes"), benchmark("competitors.base")
    equations = getattr(problems, name)()
    tolerance = {"ring_modulator": 1e-8}.get(name, 1e-9)
    try:
        end = codes.radau5(codes.of_equations(equations), tolerance).solve()
    except base.MissingCodeError as missing:
        pytest.skip(str(missing))
    # Errors of steps sum up; the wheelset is published to six digits.
    assert error(equations, end) < {"ring_modulator": 1e-5, "wheelset": 3e-6}.get(name, 1e-8)
