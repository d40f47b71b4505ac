"""What the README says is there, and its code runs."""
import re
import runpy

import pytest
from conftest import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf8")


def test_links_and_pictures_exist():
    for path in re.findall(r"\]\(([^)h][^)]*)\)", TEXT):
        assert (ROOT / path).is_file(), path


def test_every_notebook_is_listed():
    for p in (ROOT / "nbs").glob("*.ipynb"):
        assert f"nbs/{p.name}" in TEXT, p.name


def test_ci_types_the_commands_of_the_readme():
    commands = re.search(r"```sh\n(.*?)```", TEXT, re.S)[1].split("\n")
    ci = (ROOT / ".ci" / "run").read_text()
    for c in filter(None, commands):
        assert c in ci, c


def test_six_lines(tmp_path, monkeypatch, capsys):
    if not (ROOT / "runs/scenes-teran-mrsw/model").is_dir():
        pytest.skip("the six lines use the model of the README's first command; run it first")
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
    assert len(code.strip().splitlines()) == 6
    (tmp_path / "six.py").write_text(code)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(tmp_path / "six.py"))
    right, wrong = capsys.readouterr().out.strip().splitlines()
    assert float(right.split()[0]) > float(wrong.split()[0]) and "-> region" in right
