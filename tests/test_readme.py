"""The README: nothing is left to fill in, and its set-up commands are two. Its code: test_pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"MEASURED|TODO|@@", README)


def test_there_are_two_set_up_commands():
    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert [c.strip().split("&& ")[-1] for c in commands] == ["jaxdae tune two-link", "pytest"]
