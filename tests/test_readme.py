"""The README says what is true: its code runs, and its set-up commands are two."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# As the other tests, the process lowers its programs in one context.
AS_PRINTED = """
import runpy, sys
from helpers.lowering import share_contexts
share_contexts()
runpy.run_path(sys.argv[1], run_name="__main__")
"""
SEARCHED = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


@pytest.mark.slow
def test_the_code_of_the_readme_runs_as_printed(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    # Most programs run for milliseconds: as the other tests, without optimization.
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": SEARCHED}
    done = subprocess.run(
        [sys.executable, "-c", AS_PRINTED, str(script)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    error = float(re.search(r"constraint error \[m\^2\]: (\S+)", done.stdout)[1])  # pyright: ignore[reportOptionalSubscript]
    # The README prints 7e-8; another machine rounds differently, but not by a factor of three.
    assert 2e-8 < error < 2e-7
    assert "Levenberg-Marquardt" in done.stdout
    # On starts and steps that it was not tuned on, the tuned gains are better at each.
    costs = dict(re.findall(r"(\w+) costs by step: \[(.*)\]", done.stdout))
    first, tuned = (list(map(float, costs[name].split())) for name in ("first", "tuned"))
    assert all(new < old for new, old in zip(tuned, first, strict=True))
    assert "\nunstable\n" in done.stdout
    lean = float(re.search(r"left of the lean \[m\]: (\S+)", done.stdout)[1])  # pyright: ignore[reportOptionalSubscript]
    # The regulated roots are -2.702 and -3.650: 0.3 m * 3.650 / (3.650 - 2.702) * exp(-2.702 * 5).
    assert lean == pytest.approx(1.57e-6, rel=0.05)
    assert (tmp_path / "results" / "pendulum.png").exists()


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"MEASURED|TODO|@@", README)


@pytest.mark.slow
def test_there_are_two_set_up_commands():
    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert [c.strip().split("&& ")[-1] for c in commands] == ["jaxdae tune two-link", "pytest"]
