"""Stored outputs: every value that a lesson shows is there, and nothing else."""
import ast
import json
import re

import pytest
from conftest import ROOT
from test_structure import NOTEBOOKS, tree

VALUES = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.BinOp)


def code_cells(notebook):
    "Number, source and outputs of each code cell."
    for i, cell in enumerate(json.loads(notebook.read_text(encoding="utf8"))["cells"]):
        if cell["cell_type"] == "code":
            yield i, "".join(cell["source"]), cell["outputs"]


def shows_a_value(source):
    "Whether a visible cell certainly shows a value: its last line is no call, which may give None."
    if re.search(r"^#\|\s*(hide|export|default_exp|eval: false)", source, re.M) or source.rstrip().endswith(";"):
        return False
    statements = tree(source).body
    return bool(statements) and isinstance(statements[-1], ast.Expr) and isinstance(statements[-1].value, VALUES)


def wrong_outputs(source, outputs):
    "What is wrong with the outputs of a cell."
    if re.search(r"^#\|\s*(export|default_exp)", source, re.M) and outputs:
        yield "a cell that is exported has an output"
    if shows_a_value(source) and not outputs:
        yield "its last line is a value, and no output is stored"
    text = json.dumps(outputs)
    if re.search(r"\d+%\|", text):
        yield "a progress bar is stored"
    if any(o["output_type"] == "error" or o.get("name") == "stderr" for o in outputs):
        yield "an error or a warning is stored"


@pytest.mark.parametrize(("source", "outputs", "wrong"), [
    ("1 + 1", [], "no output is stored"),
    ("#| export\nx = 1", [{"output_type": "stream", "name": "stdout", "text": "1"}], "is exported"),
    ("f()", [{"output_type": "stream", "name": "stdout", "text": "scenes: 92%|███"}], "progress bar"),
    ("f()", [{"output_type": "stream", "name": "stderr", "text": "a warning"}], "a warning is stored")])
def test_wrong_outputs_are_named(source, outputs, wrong):
    assert wrong in " ".join(wrong_outputs(source, outputs))


def test_a_call_may_show_nothing():
    assert not list(wrong_outputs("test_eq(1, 1)", []))


def test_library_pages_store_what_they_show():
    pages = [*NOTEBOOKS, *(ROOT / "nbs").glob("*.ipynb")]
    wrong = [f"{p.parent.name}/{p.stem} [{i}]: {text}"
             for p in pages for i, source, outputs in code_cells(p) for text in wrong_outputs(source, outputs)
             if p.parent.name != "nbs" or "no output is stored" not in text] # some workflows are stored without a run
    assert not wrong, "\n".join(wrong)


def test_no_notebook_stores_the_state_of_widgets():
    "Jupyter stores it when a cell makes widgets, also those that are never shown: hundreds of kilobytes."
    assert not [p.name for p in [*NOTEBOOKS, *(ROOT / "nbs").glob("*.ipynb")] if "widgets" in json.loads(p.read_text(encoding="utf8"))["metadata"]]
