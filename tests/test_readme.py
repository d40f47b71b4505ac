"""What the README and the other documents name exists, and the README's code runs."""
import re
import runpy

import nbformat
import pytest
from conftest import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf8")
NAMES = ("README.md", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "data/README.md")
DOCUMENTS = [ROOT / name for name in NAMES] + sorted(ROOT.glob("results/*.md")) + sorted(ROOT.glob("docs/*.md"))


def anchors(document):
    "What GitHub calls the headings of a document."
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_pictures_exist(document):
    "Files, and the headings that links into our documents name."
    for path, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", document.read_text(encoding="utf8")):
        target = document.parent / path if path else document
        assert path.startswith("https://") or target.exists(), f"{document.name} links to {path}"
        if heading and target.suffix == ".md":
            assert heading in anchors(target), f"{document.name} links to {path}#{heading}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_files_exist(document):
    "Notebooks, scripts and modules that stand in commands or in the text."
    for path in re.findall(r"(?:nbs|benchmarks|tests|teran_nb)/[\w/]+\.(?:ipynb|py)\b", document.read_text(encoding="utf8")):
        if not path.startswith(("nbs/verb", "nbs/group")):
            assert (ROOT / path).is_file(), f"{document.name} names {path}"


def parameters_of(workflow):
    "The names in the cell of parameters of a workflow."
    cell = next(cell for cell in nbformat.read(workflow, as_version=4).cells if "parameters" in cell.metadata.get("tags", []))
    return set(re.findall(r"^(\w+) *=", cell.source, re.M))


def test_typed_parameters_exist():
    "Every parameter of a command in the documents and notebooks, copies of workflows (my-train.ipynb) included."
    texts = {document: document.read_text(encoding="utf8") for document in DOCUMENTS}
    for path in ROOT.glob("nbs/**/*.ipynb"):
        texts[path] = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    parameters = {path.stem: parameters_of(path) for path in ROOT.glob("nbs/*.ipynb") if path.stem != "tour"}
    commands = 0
    for path, text in texts.items():
        for workflow, arguments in re.findall(r"papermill (?:nbs/)?(?:my-)?(\w+)\.ipynb([^\n`]*)", text):
            typed = set(re.findall(r"-[pr] (\w+)|-y '(\w+):", arguments))
            unknown = {a or b for a, b in typed} - parameters.get(workflow, {a or b for a, b in typed})
            assert not unknown, f"{path.relative_to(ROOT)}: {workflow} has no parameter {unknown}"
            commands += bool(typed)
    assert commands > 50


def test_the_readme_is_short():
    assert len(TEXT.encode()) <= 9_000


def test_every_workflow_is_listed():
    for p in (ROOT / "nbs").glob("*.ipynb"):
        assert f"nbs/{p.name}" in TEXT, p.name


def test_every_group_is_listed():
    for p in {p.parent for p in (ROOT / "nbs").glob("*/*.ipynb")}:
        assert f"(nbs/{p.name})" in TEXT, p.name


def test_ci_types_the_commands_of_the_readme():
    first, *others = re.findall(r"```sh\n(.*?)\n```", TEXT, re.S)
    tests = next(block for block in others if "nbdev_test" in block)
    ci = (ROOT / ".ci" / "run").read_text()
    for c in f"{first}\n{tests}".split("\n"):
        assert c in ci, c


def test_six_lines(tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
    assert len(code.strip().splitlines()) == 6
    (tmp_path / "six.py").write_text(code)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(tmp_path / "six.py"))
    bike, food = capsys.readouterr().out.strip().splitlines()
    assert re.match(r"\S+ \d\.\d\d \[\('a', \d+\), \('man', \d+\), .*\]$", bike) and bike.split()[0] != food.split()[0]
