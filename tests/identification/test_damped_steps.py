"""Steps that eliminate starts record by record, against NumPy's least squares on one matrix."""

import numpy as np
import pytest

from jaxdae.identification.damped_steps import Compressed
from jaxdae.identification.linearization import Group, LinearizedFit


def linearization(rng, forms, p=3):
    """Records of several forms `(records, rows, own)`, and two priors."""
    groups, used = [], p
    for records, m, d in forms:
        entries = used + np.arange(records * d).reshape(records, d)
        used += records * d
        value = rng.normal(size=(records, m))
        shared, own = (rng.normal(size=(records, m, k)) for k in (p, d))
        nodes, rows, members = np.zeros(d, bool), np.zeros(m, int), tuple(range(records))
        groups.append(Group(value, shared, own, entries, nodes, rows, np.arange(m), members))
    priors, slopes = rng.normal(size=2), rng.normal(size=(2, p))
    return LinearizedFit(groups, priors, slopes, used, np.dtype(float))


def dense(found):
    p = found.prior_slopes.shape[1]
    rows, values = [np.pad(found.prior_slopes, ((0, 0), (0, found.unknowns - p)))], [found.priors]
    for g in found.groups:
        for i, entries in enumerate(g.entries):
            full = np.zeros((g.value.shape[1], found.unknowns))
            full[:, :p], full[:, entries] = g.shared[i], g.own[i]
            rows.append(full)
            values.append(g.value[i])
    return np.concatenate(rows), np.concatenate(values)


@pytest.mark.parametrize("damping", [1e-12, 1e-3, 1.0])
@pytest.mark.parametrize("forms", [[(4, 9, 2)], [(3, 5, 0)], [(2, 7, 3), (5, 4, 1), (1, 3, 4)]])
def test_steps_are_those_of_one_matrix(forms, damping):
    """A record of fewer samples than unknowns, one without any, and an unknown that is held."""
    rng = np.random.default_rng(0)
    found = linearization(rng, forms)
    jac, value = dense(found)
    scale = rng.uniform(0.1, 2.0, found.unknowns)
    scale[1] = 0.0
    step = Compressed.of(found).step(scale, damping)
    matrix = np.concatenate([jac * scale, np.sqrt(damping) * np.eye(found.unknowns)])
    right = np.concatenate([-value, np.zeros(found.unknowns)])
    expected = scale * np.linalg.lstsq(matrix, right, rcond=None)[0]
    # The record with fewer samples than unknowns has a condition of one over the damping's root,
    # a million, and with it ten digits less of sixteen; some are in the expected ones alone.
    np.testing.assert_allclose(step.change, expected, rtol=1e-3, atol=1e-6)
    decrease = value @ value - np.sum((value + jac @ step.change) ** 2)
    np.testing.assert_allclose(step.decrease, decrease, rtol=1e-9)
    assert step.change[1] == 0.0
    np.testing.assert_allclose(found.norms(), np.linalg.norm(jac, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.gradient(), (value @ jac)[:3], rtol=1e-10)
