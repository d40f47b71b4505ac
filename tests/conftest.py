"""What the tests share: a way to run workflows as a user does."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
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


@pytest.fixture(scope="session")
def toured(tmp_path_factory):
    "The executed tour of the smallest preset."
    folder = tmp_path_factory.mktemp("toured")
    papermill("tour", folder / "tour.ipynb", output=str(folder / "runs"), epochs=1)
    return folder / "tour.ipynb"


@pytest.fixture(scope="session")
def browser():
    "Headless Chromium, or a skip that says how to get it."
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("Playwright is missing: pip install playwright")
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("Chromium is missing: apt-get update && apt-get install -y chromium")
    with sync_playwright() as p:
        launched = p.chromium.launch(executable_path=chromium, args=ARGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def screens(request):
    "The folder of the screenshots, named in the log."
    folder = ROOT / "runs" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    request.config.pluginmanager.get_plugin("terminalreporter").write_line(f"\nscreenshots: {folder}")
