"""Every benchmark runs; what it measures at that size means nothing."""
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.training.datasets import photographs


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "benchmarks").glob("*.py") if p.stem not in ("common", "other_indexes")))
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


def test_another_index_is_measured_by_what_search_py_writes(tmp_path, monkeypatch):
    "Two images and two sentences, and an index that compares every region with every word."
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import other_indexes

    class Exact:
        ways = {"every one": {}, "9 candidates": {"candidates": 9}}

        def __init__(self, path, regions, counts):
            path.write_text("index")
            self.sets = np.split(regions, np.cumsum(counts)[:-1])

        def search(self, words):
            return np.argsort([-(some @ words.T).max(0).sum() for some in self.sets]).tolist()

    monkeypatch.setitem(other_indexes.INDEXES, "exact", Exact)
    axes = np.eye(3, dtype=np.float16)
    parts = {"regions": axes, "regions of": [1, 2], "words": axes[[0, 1, 2]].astype(np.float32), "words of": [1, 2]}
    for name, values in parts.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(values))
    other_indexes.main(tmp_path, "exact")
    result = json.loads((tmp_path / "found.json").read_text())
    assert list(result["found"]) == ["exact, every one"]  # two images have no nine candidates
    hits, wall, cpu = result["found"]["exact, every one"]
    assert hits == [[0, 1], [1, 0]] and len(wall) == len(cpu) == 2
    assert result["bytes"] > 0 and result["resident"] > 0
