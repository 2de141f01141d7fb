"""Calls that are compared make the same run."""

import numpy as np
import pytest


@pytest.mark.slow
def test_new_systems_move_alike_by_whatever_code(benchmark):
    calls = benchmark("repeated_calls")
    law, start = calls.formulation(), calls.starts(1)[0]
    rows = [
        np.asarray(calls.run_of(code, law, start)(9.81)) if "jaxdae" in code else
        np.asarray(calls.by_hand(9.81))[:, :2]
        for code in calls.CODES
    ]  # fmt: skip
    # Tolerances of 1e-8 in each of some ten steps; the stabilization acts on less than that.
    np.testing.assert_allclose(rows[1:], [rows[0]] * 2, atol=1e-6)
