"""The benchmark for GPUs: a clear word where there is none, and a rehearsal of its calls."""

import json

import pytest

from jaxdae.kernels.cuda.report import DEVICES


@pytest.fixture(scope="module")
def gpu_batch(benchmark):
    return benchmark("gpu_batch")


def test_without_a_gpu_nothing_is_measured(gpu_batch, tmp_path, capsys):
    assert gpu_batch.main(["--out", str(tmp_path / "gpu.json")]) == 2
    said = capsys.readouterr().err
    assert "no GPU, JAX computes on cpu; nothing was measured" in said
    assert "pip install 'jaxdae[cuda]'" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_rehearsal_calls_every_code_and_writes_its_results(
    gpu_batch, tmp_path, capsys, monkeypatch
):
    """Of the plain programs, which compile longest, one; codes that are missing are named."""
    every = gpu_batch.codes

    def some(case, y, precision):
        wanted = {gpu_batch.MINE, "diffrax by hand, vmap", "MJX, vmap", "MJX, warp"}
        return {name: x for name, x in every(case, y, precision).items() if name in wanted}

    monkeypatch.setattr(gpu_batch, "codes", some)
    monkeypatch.setattr(gpu_batch, "STEPS", {"two-link": (5, 1e-4)})
    monkeypatch.setattr(gpu_batch.batch, "PRECISIONS", ("float64",))
    out = tmp_path / "new" / "gpu.json"
    words = ["--cpu", "--problems", "two-link", "--repetitions", "1", "--members", "3"]
    assert gpu_batch.main([*words, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["benchmark"] == "gpu_batch"
    assert result["settings"] == {"quick": False, "rounds": 1, "problems": ["two-link"]}
    assert result["machine"]["rehearsal"] is True
    assert result["machine"]["versions"]["jax"]
    rows = {x["code"]: x for x in result["rows"]}
    for name in (gpu_batch.MINE, "diffrax by hand, vmap"):
        row = rows[name]
        assert (row["members"], row["steps"], row["missing"]) == (3, 5, None)
        # Round-off of five steps of states of the order of one.
        assert row["error"] < 1e-13
        rates = row["steps_per_second"]["median"], row["members_per_second"]["median"]
        assert rates[0] == pytest.approx(5 * rates[1])
    assert "mujoco" in rows["MJX, vmap"]["missing"] or rows["MJX, vmap"]["seconds"]
    report = result["reports"]["two-link, float64"]
    assert report["roofline_steps_per_second"]["H100"] > 0
    # Nothing that was timed on a processor is compared with what is estimated for a GPU.
    assert "share_of_roofline" not in rows[gpu_batch.MINE]
    assert "of estimate" in capsys.readouterr().out


def test_measured_rates_stand_beside_estimates_for_the_same_gpu(gpu_batch):
    row = gpu_batch.Row("two-link", gpu_batch.MINE, "float64", 100, 10, seconds=[1.0, 2.0, 4.0])
    other = gpu_batch.Row("two-link", "MJX, vmap", "float64", 100, 10, missing="missing: x")
    rows = [row.figures(), other.figures()]
    assert rows[0]["members_per_second"] == {"median": 50.0, "min": 25.0, "max": 100.0}
    assert rows[0]["steps_per_second"]["median"] == 500.0
    h100 = DEVICES[0]
    reports = {"two-link, float64": {"roofline_steps_per_second": {"H100": 2000.0}}}
    gpu_batch.shares(rows, reports, h100)
    assert rows[0]["share_of_roofline"] == 0.25
    assert "share_of_roofline" not in rows[1]
    printed = gpu_batch.text(rows)
    assert "25%" in printed
    assert "missing: x" in printed
