"""An installed wheel carries its data files: the papers' tables and the page templates."""
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

pytestmark = pytest.mark.xdist_group("wheel")
CODE = """
import json, teran_nb
from teran_nb.zoo.papers import TABLES, contents, published
row = published("teran-mrsw", "COCO 1K")
print(json.dumps([teran_nb.__file__, str(TABLES), len(contents()), row["t2i_r1"]]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    "A wheel of the package, unpacked as pip would install it."
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, since setuptools builds inside the folder of setup.py
    source.mkdir()
    for name in ("setup.py", "settings.ini", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "teran_nb", source / "teran_nb", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    return site


def test_published_numbers_outside_the_checkout(unpacked, tmp_path):
    env = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    package, tables, count, recall = json.loads(done.stdout)
    assert package.startswith(str(unpacked)) and tables.startswith(str(unpacked))
    assert count == 13 and recall == 0.65


def test_every_data_file_is_in_the_wheel(unpacked):
    files = [p.relative_to(ROOT) for p in (ROOT / "teran_nb").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert any(p.suffix == ".csv" for p in files)
    missing = [str(p) for p in files if not (unpacked / p).is_file()]
    assert not missing, missing
