"""`jaxdae kernel`: what it writes and prints, also where something is missing."""

import json

from jaxdae.cli import main
from jaxdae.kernels.cuda import report as reports
from jaxdae.kernels.cuda.assembler import AssemblerMissingError

QUICK = ("--t1", "0.1", "--dt", "0.01")


def kernel(out, *words: str) -> int:
    return main(["kernel", "pendulum", *QUICK, "--out", str(out), *words])


def test_it_writes_ptx_and_a_report_and_prints_tables(tmp_path, capsys):
    assert kernel(tmp_path) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "report.json").read_text())
    assert ".visible .entry kernel" in (tmp_path / "kernel.ptx").read_text()
    assert (result["steps"], result["bytes_per_member"]) == (10, 64)
    words = " ".join(printed.split())
    assert f"registers of a thread {result['registers']} " in words
    assert "10 steps of rk4, 0.01 s each" in printed
    assert "steps/s at most, H100" in printed
    assert "nothing was measured on a GPU" in printed
    assert str(tmp_path) in printed


def test_precision_architecture_and_members_are_chosen(tmp_path):
    words = ("--arch", "sm_70", "--dtype", "float32", "--members", "1000", "--solver", "tsit5")
    assert kernel(tmp_path, *words) == 0
    result = json.loads((tmp_path / "report.json").read_text())
    assert (result["architecture"], result["dtype"]) == ("sm_70", "float32")
    assert (result["members"], result["solver"]) == (1000, "tsit5")


def test_without_an_assembler_ptx_is_written_and_the_reason_printed(tmp_path, capsys, monkeypatch):
    def missing(*_):
        raise AssemblerMissingError("ptxas is missing; pip install 'jaxdae[gpu-test]'.")

    monkeypatch.setattr(reports, "assemble", missing)
    assert kernel(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "No registers: ptxas is missing; pip install" in printed
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["registers"] is None
    assert "ptxas is missing" in result["missing"]
    assert (tmp_path / "kernel.ptx").stat().st_size > 1000


def test_the_step_is_that_of_the_study(tmp_path):
    words = ("kernel", "pendulum", "--t1", "0.1", "--out", str(tmp_path))
    assert main(words) == 0
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["steps"] == round(0.1 / result["dt"])
