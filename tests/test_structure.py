"""Groups, numbers, names and imports keep their order."""
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict

from conftest import ROOT

GROUPS = ("core", "data", "scenes", "photos", "model", "zoo", "measure", "training", "search", "look")
HEAVY = ("matplotlib", "ipywidgets", "jupyterlab", "IPython")
NOTEBOOKS = sorted((ROOT / "nbs").glob("*/*.ipynb"))


def sources(notebook):
    "The source of each code cell."
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def tree(source):
    "The syntax tree of a cell; magics and shell commands are left out."
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.M))


def module_of(notebook):
    "The module that a notebook exports, without the package."
    return re.search(r"^#\|\s*default_exp (\S+)", "\n".join(sources(notebook)), re.M)[1]


def place(notebook):
    "Group and number: a notebook imports only from smaller places, its own included for lessons."
    return GROUPS.index(notebook.parent.name), int(notebook.stem[:2])


def imports(node):
    "Names of our modules that a piece of code imports."
    for n in ast.walk(node):
        if isinstance(n, ast.Import):
            yield from (a.name.removeprefix("teran_nb.") for a in n.names if a.name.startswith("teran_nb."))
        elif isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("teran_nb."):
            yield n.module.removeprefix("teran_nb.")


def refused(found, places):
    "What is wrong with imports, given as (notebook, place, module)."
    for notebook, own, module in found:
        if module not in places:
            yield f"{notebook} imports {module}, which no notebook exports"
        elif places[module] > own:
            yield f"{notebook} imports {module}, which comes later"


def test_a_notebook_imports_only_what_stands_before_it():
    places = {module_of(p): place(p) for p in NOTEBOOKS}
    found = [(f"{p.parent.name}/{p.stem}", place(p), m) for p in NOTEBOOKS for s in sources(p) for m in imports(tree(s))]
    assert not list(refused(found, places))


def test_an_import_that_goes_up_is_refused():
    "The test above would notice."
    places = {"core.files": (0, 1), "model.network": (2, 8)}
    up = [("core/01_files", (0, 1), m) for m in imports(tree("def late():\n    from teran_nb.model.network import Network"))]
    down = [("model/08_network", (2, 8), m) for m in imports(tree("from teran_nb.core.files import atomic"))]
    assert list(refused(up, places)) == ["core/01_files imports model.network, which comes later"] and not list(refused(down, places))


def test_groups_and_numbers():
    assert {p.parent.name for p in NOTEBOOKS} <= set(GROUPS)
    assert all(re.fullmatch(r"\d\d_[a-z_]+", p.stem) for p in NOTEBOOKS)
    assert len({place(p) for p in NOTEBOOKS}) == len(NOTEBOOKS), "two notebooks of a group have one number"
    for group in {p.parent for p in NOTEBOOKS}:
        numbers = [int(p.stem[:2]) for p in NOTEBOOKS if p.parent == group]
        assert numbers == list(range(len(numbers))), f"{group.name} is not numbered from 00 without a gap"


def test_a_notebook_is_called_as_its_module():
    for p in NOTEBOOKS:
        group, name = module_of(p).split(".")
        assert (group, name) == (p.parent.name, p.stem[3:]), p
        assert name not in sys.stdlib_module_names, f"{name} shadows the standard library"


def test_every_module_has_a_notebook():
    exported = {module_of(p) for p in NOTEBOOKS}
    for p in (ROOT / "teran_nb").rglob("*.py"):
        module = ".".join(p.relative_to(ROOT / "teran_nb").with_suffix("").parts)
        assert p.stem in ("__init__", "_modidx") or module in exported, f"{p} is exported by no notebook"


def test_a_public_name_is_defined_once():
    where = defaultdict(set)
    for p in NOTEBOOKS:
        for s in sources(p):
            if not re.search(r"^#\|\s*exports?\b", s, re.M):
                continue
            for n in tree(s).body:
                names = []
                if isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                    names = [n.name] if not any("patch" in ast.unparse(d) for d in n.decorator_list) else []
                elif isinstance(n, (ast.Assign, ast.AnnAssign)):
                    targets = n.targets if isinstance(n, ast.Assign) else [n.target]
                    names = [x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
                for name in names:
                    if not name.startswith("_"):
                        where[name].add(module_of(p))
    assert not {name: sorted(modules) for name, modules in where.items() if len(modules) > 1}


def test_links_between_notebooks_lead_somewhere():
    for p in (ROOT / "nbs").rglob("*.ipynb"):
        for c in json.loads(p.read_text(encoding="utf8"))["cells"]:
            for link in re.findall(r"\]\(([^):#]+\.ipynb)\)", "".join(c["source"]) if c["cell_type"] == "markdown" else ""):
                assert (p.parent / link).is_file(), f"{p.relative_to(ROOT)} links to {link}"


WITHOUT = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}: raise ImportError(f"{{name}} is not part of what a model needs")
sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]: importlib.import_module(name)
"""


def test_a_model_needs_no_jupyter():
    "These groups import where matplotlib, widgets and JupyterLab cannot be imported."
    groups = ("core", "data", "scenes", "photos", "model", "zoo", "measure", "training")
    modules = [f"teran_nb.{module_of(p)}" for p in NOTEBOOKS if p.parent.name in groups]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *modules], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_the_package_is_cheap():
    code = "import sys, teran_nb; assert 'torch' not in sys.modules; from teran_nb import load_model; assert callable(load_model); [getattr(teran_nb, name) for name in teran_nb.__all__]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_class_of_two_pages_has_the_methods_of_both():
    code = "from teran_nb import Index, Network; Index.add, Index.search, Index.recall, Network.save"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
