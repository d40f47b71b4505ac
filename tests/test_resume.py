"""Training that is killed and resumed ends with the digits of training that was not."""
import json
import os
import signal
import subprocess
import time

from conftest import ROOT, command, papermill

LONG = {"overrides": {"train.epochs": 6, "train.captions": 1, "train.images": 4}}


def rows(run):
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in (run / "log.jsonl").read_text().splitlines()]


def test_kill_minus_nine(tmp_path):
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), name="whole", **LONG)
    run = tmp_path / "killed"
    process = subprocess.Popen(command("train", tmp_path / "out.ipynb", output=str(tmp_path), name="killed", **LONG), cwd=ROOT, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.time() + 120
    while not ((run / "log.jsonl").is_file() and len(rows(run)) >= 2):
        assert process.poll() is None and time.time() < end
        time.sleep(.05)
    os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(["pkill", "-9", "-g", str(process.pid)], check=False)
    process.wait()
    kernels_gone(run)
    done = len(rows(run))
    assert 2 <= done < 6, "it was killed too late to show anything"
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), resume="killed", **LONG)
    assert rows(run) == rows(tmp_path / "whole")
    both = [json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] for name in ("whole", "killed")]
    assert both[0] == both[1]


def kernels_gone(run):
    "The kernel dies with papermill; wait until nothing writes to the run any more."
    before = None
    while (now := (run / "last.pt").stat().st_mtime_ns) != before:
        before = now
        time.sleep(3)
