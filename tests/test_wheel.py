"""A wheel, built without a network, carries its data files and nothing else, and works outside the checkout."""
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
LARGEST = 8_000_000 # bytes: 7.0 MiB of weights, the rest is code
CODE = """
import json, sys, teran_nb
from teran_nb.measure.papers import TABLES, paper_tables, published
row = published("teran-mrsw", "COCO 1K")
dim = teran_nb.recipe("teran-both", scale="photos").network.dim
alignment = teran_nb.load_model("flickr8k").align(sys.argv[1], "a red kite")
print(json.dumps([teran_nb.__file__, str(TABLES), len(paper_tables()), row["t2i_r1"], dim, alignment.words]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    "A wheel of the package, unpacked as pip would install it."
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, since setuptools builds inside the folder of setup.py
    source.mkdir()
    for name in ("setup.py", "settings.ini", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "teran_nb", source / "teran_nb", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    assert wheel.stat().st_size < LARGEST
    return site


def test_outside_the_checkout(unpacked, tmp_path):
    "The papers' tables, the recipes, and the model with its weights."
    env = os.environ | {"PYTHONPATH": str(unpacked)}
    picture = next((ROOT / "data/photos/images").glob("*.jpg"))
    done = subprocess.run([sys.executable, "-c", CODE, str(picture)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    package, tables, count, recall, dim, words = json.loads(done.stdout.splitlines()[-1])
    assert package.startswith(str(unpacked)) and tables.startswith(str(unpacked))
    assert count == 13 and recall == 0.65 and dim == 256 and words == ["a", "red", "kite"]


def test_every_data_file_is_in_the_wheel(unpacked):
    files = [p.relative_to(ROOT) for p in (ROOT / "teran_nb").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert any(p.suffix == ".csv" for p in files)
    missing = [str(p) for p in files if not (unpacked / p).is_file()]
    assert not missing, missing


def test_nothing_else_is_in_the_wheel(unpacked):
    "No tests, lab, notebooks, data or site; the weights are."
    assert [p.name for p in unpacked.iterdir() if p.suffix != ".dist-info"] == ["teran_nb"]
    inside = {p.suffix for p in unpacked.rglob("*") if p.is_file()}
    assert not inside & {".ipynb", ".jpg", ".png", ".pyc"}
    weights = unpacked / "teran_nb/models/flickr8k"
    assert sum(p.stat().st_size for p in weights.iterdir()) > 6_000_000


def test_jupyter_is_an_extra(unpacked):
    "What every install takes has no JupyterLab, and the extra `dev` names all that the project needs."
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    needs = [line.removeprefix("Requires-Dist: ") for line in metadata.read_text(encoding="utf8").splitlines() if line.startswith("Requires-Dist: ")]
    def names(lines): return {re.split(r"[^\w-]", line)[0] for line in lines}
    core = names(line for line in needs if "extra ==" not in line)
    dev = names(line for line in needs if 'extra == "dev"' in line)
    assert not core & {"jupyterlab", "ipywidgets", "matplotlib", "papermill", "nbdev"}
    assert {"torch", "transformers", "pillow", "jupyterlab", "ipywidgets", "matplotlib", "papermill", "nbdev"} <= core | dev
