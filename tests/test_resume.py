"""Training that is killed and resumed ends with the digits of training that was not."""
import json
import subprocess
import time

import psutil
import pytest
from conftest import ROOT, command, papermill

LONG = {"epochs": 6, "options": {"captions_per_image": 1, "batch_size": 4}}


def rows(run):
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_kill_minus_nine(tmp_path):
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), name="whole", **LONG)
    run = tmp_path / "killed"
    process = subprocess.Popen(command("train", tmp_path / "out.ipynb", output=str(tmp_path), name="killed", **LONG), cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.time() + 120
    while not ((run / "log.jsonl").is_file() and len(rows(run)) >= 2):
        assert process.poll() is None and time.time() < end
        time.sleep(.05)
    for p in [*psutil.Process(process.pid).children(recursive=True), process]:
        p.kill()
    process.wait()
    done = len(rows(run))
    assert 2 <= done < 6, "it was killed too late to show anything"
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), resume="killed", **LONG)
    assert rows(run) == rows(tmp_path / "whole")
    both = [json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] for name in ("whole", "killed")]
    assert both[0] == both[1]
