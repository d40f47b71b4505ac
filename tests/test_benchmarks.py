"""Every benchmark runs; what it measures at that size means nothing."""
import subprocess
import sys

import pytest
from conftest import ROOT
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.training.datasets import photographs


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "benchmarks").glob("*.py") if p.stem != "common"))
def test_a_benchmark_runs(name):
    done = subprocess.run([sys.executable, f"benchmarks/{name}.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| --" in done.stdout


@pytest.mark.slow
def test_search_among_crops_of_photographs(tmp_path):
    "The command of benchmarks/README.md, on the open photographs and the packaged model, projected to 64 numbers."
    pictures, captions, _ = photographs()
    prepare(Sources(str(pictures), extractor="windows"), tmp_path / "photos", device="cpu", show_progress_bar=False)
    captions.save(tmp_path / "photos/captions.json")
    command = [sys.executable, "benchmarks/search.py", "--photos", str(tmp_path / "photos"), "--run", "flickr8k", "--images", "300", "--sizes", "300"]
    done = subprocess.run([*command, "--keep", str(tmp_path / "keep")], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "with 64 numbers" in done.stdout and "| exact, in memory " in done.stdout
