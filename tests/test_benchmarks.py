"""Every benchmark runs; what it measures at that size means nothing."""
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "benchmarks").glob("*.py") if p.stem != "common"))
def test_a_benchmark_runs(name):
    done = subprocess.run([sys.executable, f"benchmarks/{name}.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| --" in done.stdout
