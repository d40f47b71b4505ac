"""What the tests share: a way to run workflows as a user does."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAPERMILL = [sys.executable, "-m", "papermill", "--no-progress-bar"]


def command(notebook, out, **parameters):
    "The papermill command of a workflow on the smallest preset."
    words = [*PAPERMILL, str(ROOT / "nbs" / f"{notebook}.ipynb"), str(out)]
    for k, v in ({"preset": "tiny"} | parameters).items():
        words += ["-y", f"{k}: {json.dumps(v)}"]
    return words


def papermill(notebook, out, cwd=ROOT, **parameters):
    "Run a workflow on the smallest preset; its own error message is the test's."
    done = subprocess.run(command(notebook, out, **parameters), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(Path(out).read_text(encoding="utf8"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    "A tiny trained run."
    folder = tmp_path_factory.mktemp("trained")
    papermill("train", folder / "out.ipynb", output=str(folder / "runs"), name="tiny")
    return folder / "runs" / "tiny"
