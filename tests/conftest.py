"""What the tests share: two ways to run a workflow, what takes long to make, and what is said at the end of what was not tested.

Two tests run at a time (pyproject.toml). Slow proofs carry the mark `slow` and run by `pytest tests -m slow`, which .ci/run does too.
"""
import ast
import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two tests run at a time

import matplotlib
import nbformat
import pytest
from filelock import FileLock

matplotlib.use("agg")  # here, and not in the kernels that tests start

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
PAPERMILL = [sys.executable, "-m", "papermill", "--no-progress-bar"]


def smallest(notebook):
    "The parameter of a workflow that makes it quick; explore and gallery take the scenes of their run."
    if notebook in ("train", "tour", "compare", "ablations"):
        return {"scale": "tiny"} | ({"data": "scenes:tiny"} if notebook == "tour" else {})
    return {"evaluate": {"data": "scenes:tiny"}, "explore": {"data": "scenes"}}.get(notebook, {})


def command(notebook, out, **parameters):
    "The papermill command of a workflow on the smallest scale."
    words = [*PAPERMILL, str(ROOT / "nbs" / f"{notebook}.ipynb"), str(out)]
    for k, v in (smallest(notebook) | parameters).items():
        words += ["-y", f"{k}: {json.dumps(v)}"]
    return words


def papermill(notebook, out, cwd=ROOT, **parameters):
    "Run a workflow on the smallest scale; its own error message is the test's."
    done = subprocess.run(command(notebook, out, **parameters), cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(Path(out).read_text(encoding="utf8"))


def play(notebook, cwd=ROOT, **parameters):
    """Run the cells of a workflow in this process: the same code without a kernel, some ten seconds faster.

    Returns its variables; `shown` among them has what each cell would show, its last expression.
    """
    import matplotlib.pyplot as plt

    variables, shown = {"__name__": "__main__"}, []
    with chdir(cwd):
        for cell in nbformat.read(ROOT / "nbs" / f"{notebook}.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                tree = ast.parse(cell.source, f"{notebook}.ipynb")
                last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, f"{notebook}.ipynb", "exec"), variables)
                if last is not None:
                    shown.append(eval(compile(ast.Expression(last.value), f"{notebook}.ipynb", "eval"), variables))
                plt.close("all")  # as a kernel does after each cell
            if "parameters" in cell.metadata.get("tags", []):
                variables |= smallest(notebook) | parameters
    return variables | {"shown": shown}


def toy_result(*recalls, **about):
    "A result of the row `teran-mrsw`, one recall@1 of image retrieval a seed, without training it."
    from teran_nb.measure.results import Measured, Result

    conditions = {"protocol": "toy test", "candidates": "20 images x 100 captions", "model": "teran-mrsw", "commit": "2adcbd9", "changed": ""}
    seeds = [Measured({"t2i_r1": recall, "grounding": .3}, conditions | {"seed": seed} | about) for seed, recall in enumerate(recalls)]
    return Result({"teran-mrsw": tuple(seeds)})


def made_once(tmp_path_factory, name, make):
    "A folder that one of the parallel test processes fills, and all of them read."
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with FileLock(base / f"{name}.lock"):
        if not (folder / "made").is_file():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    "Sixteen drawn scenes."
    from teran_nb.data.collection import Collection
    from teran_nb.scenes.scenes import draw_world

    folder = made_once(tmp_path_factory, "drawn", lambda f: draw_world(f / "scenes", counts=(8, 4, 4), workers=1))
    return Collection.open(folder / "scenes")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    "A tiny trained run."
    folder = made_once(tmp_path_factory, "trained", lambda f: papermill("train", f / "out.ipynb", output=str(f / "runs"), name="tiny"))
    return folder / "runs" / "tiny"


@pytest.fixture(scope="session")
def toured(tmp_path_factory):
    "The executed tour of the smallest scale."
    folder = made_once(tmp_path_factory, "toured", lambda f: papermill("tour", f / "tour.ipynb", output=str(f / "runs"), epochs=1))
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
def screens():
    "The folder of the screenshots, which stays."
    folder = ROOT / "runs" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def no_open_figures():
    "Figures of a test are closed after it, as a kernel does after a cell."
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_unconfigure(config):
    "The last lines of the log: what was not tested here, and how to have it."
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not hasattr(reporter, "stats") or config.option.collectonly:
        return
    reasons = {}
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid)
    for reason, tests in reasons.items():
        reporter.write_line(f"not tested here ({len(tests)} skipped): {reason}")
    if not SHARED.is_dir():
        reporter.write_line(f"not tested here: the numbers of the authors' own code; they are compared where {SHARED} holds the originals' outputs")
