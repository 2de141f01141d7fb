"""The GPU benchmark, as far as a machine without a GPU can tell."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_batch.py"
PEAKS = ["--peak-tflops", "67", "--peak-tbytes", "4.8"]


@pytest.fixture(scope="module")
def script():
    """The script as a module: it is not part of a package."""
    spec = importlib.util.spec_from_file_location("gpu_batch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_measures_nothing(script, capsys):
    assert script.main(PEAKS) == 2
    assert "no GPU, JAX runs on cpu; nothing was measured" in capsys.readouterr().err


def test_it_wants_the_peaks_of_the_device(script, capsys):
    with pytest.raises(SystemExit, match="2"):
        script.main(["--peak-tflops", "-1", "--peak-tbytes", "1"])
    assert "-1 is not a positive finite number" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        script.main([])
    assert "--peak-tflops" in capsys.readouterr().err


def test_operations_of_a_step_are_those_counted_by_hand(script):
    """Two entries; four evaluations of three sums and one sine; 4 + 3 weights, 4 updates."""
    counts = Counter(add=3, sin=1)
    sums = 2 * 7 + 2 * 4  # a product and a sum for each weight, and for the step of each update
    assert script.flops_per_step(counts, 2, 20.0) == 4 * (3 + 20) + 2 * sums


@pytest.mark.parametrize(
    ("flops", "bytes_", "seconds", "bound"),
    [(8e12, 1e9, 4.0, "arithmetic"), (1e9, 6e12, 3.0, "memory")],
)
def test_the_roofline_is_the_longer_of_both_times(script, flops, bytes_, seconds, bound):
    found = script.roofline(flops, bytes_, 2e12, 2e12)
    assert found == {"seconds": seconds, "bound": bound, "intensity": flops / bytes_}
