"""A slice of each campaign, with a fixed seed; `python tests/campaigns/<name>.py --seed 0 --cases N` runs the whole."""
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT

CASES = {"mutate": 200, "kill": 16, "load": 8, "pages": 4}  # all together less than a minute of one core
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("campaigns")]


def missing(name):
    "What a campaign needs and this machine lacks; empty where it can run."
    if name in ("kill", "mutate") and sys.platform != "linux":
        return "processes are killed and bounded as Linux does it"
    if name == "pages" and not find_spec("playwright"):
        return "Playwright is missing: pip install playwright"
    if name == "pages" and not shutil.which("chromium"):
        return "Chromium is missing: apt-get update && apt-get install -y chromium"
    return ""


@pytest.fixture(scope="module")
def outcomes():
    "What each campaign printed; all run in forks of one process."
    slices = [f"{name}:{n}" for name, n in CASES.items() if not missing(name)]
    done = subprocess.run([sys.executable, str(ROOT / "tests/campaigns/slice.py"), *slices], capture_output=True, text=True, timeout=1800)
    _, *parts = re.split(r"^## (\w+)$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2])), done.stderr


@pytest.mark.parametrize("name", CASES)
def test_a_slice(name, outcomes):
    if missing(name):
        pytest.skip(missing(name))
    tables, errors = outcomes
    table = tables.get(name, "")
    assert "| all " in table and table.rstrip().endswith("status 0"), table[-6000:] + errors[-2000:]
