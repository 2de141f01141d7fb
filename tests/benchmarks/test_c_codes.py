"""The integrator in C is SciPy's DOP853, step by step; compiled with a right-hand side by hand."""

import shutil

import numpy as np
import pytest
from scipy.integrate import solve_ivp

# y = (x, v) with x'' = -x + sin(3 t) / 2 and a damper that grows with the speed.
RATE = """
#include <math.h>
typedef long long int casadi_int;
int rate(const double **arg, double **res, casadi_int *iw, double *w, int mem) {
  (void)iw, (void)w, (void)mem;
  const double t = arg[0][0], x = arg[1][0], v = arg[1][1];
  res[0][0] = v;
  res[0][1] = -x - 0.1 * v * v * v + 0.5 * sin(3 * t);
  return 0;
}
"""
SIZES = {"RATE_ARG": 2, "RATE_RES": 1, "RATE_IW": 0, "RATE_W": 0}


def rate(t, y):
    return [y[1], -y[0] - 0.1 * y[1] ** 3 + 0.5 * np.sin(3 * t)]


@pytest.fixture(scope="module")
def library(benchmark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "rate.c").write_text(RATE)
    assert shutil.which("gcc") or shutil.which("clang"), "this test needs a C compiler"
    return benchmark("competitors.c_codes").compiled(folder, 2, SIZES, with_cvode=False)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
def test_it_takes_the_steps_of_scipy(library, tolerance):
    options = {"method": "DOP853", "rtol": tolerance, "atol": tolerance}
    wanted = solve_ivp(rate, (0.0, 20.0), [1.0, -0.5], **options)
    y = np.array([1.0, -0.5])
    tried = library.dop853(20.0, tolerance, tolerance, y.ctypes.data)
    # Two evaluations for the first step, then twelve for each step that is tried.
    assert tried == (wanted.nfev - 2) / 12
    # Round-off in other orders of summation.
    np.testing.assert_allclose(y, wanted.y[:, -1], rtol=1e-10)


def test_a_batch_is_its_runs(library):
    starts = np.random.default_rng(0).normal(size=(70, 2))
    together = starts.copy()
    assert library.dop853_batch(70, 3.0, 1e-6, 1e-6, together.ctypes.data) == 0
    for i in (0, 33, 69):
        y = starts[i].copy()
        library.dop853(3.0, 1e-6, 1e-6, y.ctypes.data)
        np.testing.assert_array_equal(together[i], y)


def test_a_run_without_finite_rates_ends_with_a_failure(library):
    y = np.array([np.nan, 0.0])
    assert library.dop853(1.0, 1e-6, 1e-6, y.ctypes.data) == -1
