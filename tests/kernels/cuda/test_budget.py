"""Kernels take no more registers, spills and stacks than their recorded budget, on all GPUs.

The complete matrix of models and formulations is measured by `python -m helpers.gpu_budget
--matrix fixed`; it takes minutes. Here are some of each kind, and of the matrix some in rotation.
"""

import pytest

from helpers import gpu_budget
from helpers.gpu_budget import budget, BYTES, Case, excess, kernel_of, QUICK, REGISTERS, SLOW
from jaxdae.kernels.cuda.assembler import assemble

IN_ROTATION = (
    Case("sleigh", formulation="quasi-velocities"),
    Case("slider-crank", "adjoint", formulation="augmented"),
    Case("motor", formulation="penalty"),
)


@pytest.mark.parametrize("case", QUICK, ids=lambda x: x.name)
def test_kernels_keep_to_their_budget(case):
    assert excess(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda x: x.name)
def test_larger_kernels_keep_to_their_budget(case):
    assert excess(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_ROTATION, ids=lambda x: x.name)
def test_kernels_of_the_matrix_assemble(case):
    kernel = kernel_of(case)
    for architecture in gpu_budget.ARCHITECTURES:
        assert 0 < assemble(kernel.ptx, architecture).resources.registers <= 255


def test_budgets_are_those_that_were_promised():
    """The two-link arm in 160 registers of double precision; of Andrews' mechanism nothing spilled,
    which is what threads of larger mechanisms do when functions are called."""
    each = budget()
    assert all(x["registers"] <= 160 for x in each["two-link fixed float64"].values())
    for name in ("two-link fixed float64", "andrews fixed float64", "andrews fixed float32"):
        assert all(x["spilled"] == 0 for x in each[name].values())
    assert each.keys() == {x.name for x in QUICK + SLOW}


def test_what_exceeds_its_budget_is_named(monkeypatch):
    row = {"registers": 100, "spilled": 0, "stack": 0}
    case = Case("two-link")
    monkeypatch.setattr(gpu_budget, "budget", lambda: {case.name: {"sm_70": row}})
    for more, count in ((0, 0), (REGISTERS, 0), (REGISTERS + 1, 1)):
        rows = {"sm_70": {**row, "registers": 100 + more, "spilled": BYTES}}
        monkeypatch.setattr(gpu_budget, "measured", lambda _, rows=rows: rows)
        assert len(excess(case)) == count
    assert excess(case) == ["two-link fixed float64 on sm_70: 109 registers, budget 100"]
