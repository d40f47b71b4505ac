"""A slice of each campaign, with a fixed seed; `python tests/campaigns/<name>.py --seed 0 --cases N` runs the whole."""
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

CASES = {"mutate": 100, "kill": 8, "load": 8, "pages": 4}  # about half a minute of one core each, or less


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_slice(name):
    if name == "pages":
        pytest.importorskip("playwright", reason="Playwright is missing: pip install playwright")
        if not shutil.which("chromium"):
            pytest.skip("Chromium is missing: apt-get update && apt-get install -y chromium")
    if name in ("kill", "mutate") and sys.platform != "linux":
        pytest.skip("processes are killed and bounded as Linux does it")
    command = [sys.executable, str(ROOT / "tests/campaigns" / f"{name}.py"), "--seed", "0", "--cases", str(CASES[name])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "| all " in done.stdout
