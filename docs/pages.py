"""The pages of the site, as Sphinx reads them: notebooks and documents of the repository are written to `_proc/source`.

The notebooks are read by nbdev, which knows their directives. Code is never run, and the package is not imported: signatures and the
comments of parameters ("docments") are read from the cells, so that a page says what the source says. (`nbdev.serve.proc_nbs` runs
the imports and exported cells of every notebook, which takes minutes and fails where an import stands in a lesson.)
"""
import ast
import io
import json
import os
import re
import shutil
import tokenize
from functools import cache
from pathlib import Path

import nbformat
from nbdev.process import NBProcessor

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "_proc" / "source"
GROUPS = {
    "core": "Core", "data": "Data", "scenes": "Drawn scenes", "photos": "From pictures to a collection", "model": "Model",
    "zoo": "Published and pretrained models", "measure": "Measuring", "training": "Training", "search": "Search", "look": "Looking"}
DOCUMENTS = [
    "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "data/README.md", "data/photos/CREDITS.md",
    "lab/README.md", "teran_nb/models/flickr8k/README.md"]
FOLDERS = ["figures/gallery"] # pages of their own, with what they show


def sources():
    "Every page: its path in the repository, and in the site."
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            yield path, path.relative_to(ROOT / "nbs")
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield path, Path(path.name)
    for path in [*(ROOT / name for name in DOCUMENTS), *sorted((ROOT / "results").glob("*.md"))]:
        yield path, path.relative_to(ROOT)


PAGES = dict(sources())


def place(target):
    "Where a file or folder of the repository is in the site: a page, or a file that travels with it."
    if target in PAGES:
        return PAGES[target]
    if target.parent == ROOT / "nbs" and target.is_dir():
        return Path(target.name, "index.md")
    return None


def relative(target, page):
    "A path in the site, as seen from a page."
    return Path(os.path.relpath(target, page.parent)).as_posix()


# An image, a link, or code: what stands in code is no link.
MARKS = re.compile(r"(?P<fence>^(?P<f>```+).*?^(?P=f))|(?P<link>(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s]+)\))|(?P<code>(?P<t>`+)(?P<name>.+?)(?P=t))", re.DOTALL | re.MULTILINE)


def linked(text, source, page, names):
    "Markdown whose links lead to pages of the site, and whose public names lead to where they are explained."
    def replaced(m):
        if m["fence"]:
            return m[0]
        if m["code"]:
            heading = text[text.rfind("\n", 0, m.start()) + 1:].startswith("#") # its anchor is made of its text
            return f"{{py:obj}}`{m['name']} <{names[m['name']]}>`" if m["name"] in names and not heading else m[0]
        path, _, anchor = m["path"].partition("#")
        if ":" in path or not path:
            return m[0]
        target = (source.parent / path).resolve()
        anchor = f"#{anchor}" if anchor else ""
        if place(target):
            return f"[{m['text']}]({relative(place(target), page)}{anchor})"
        if not target.is_file():
            raise FileNotFoundError(f"{source.relative_to(ROOT)} links to {path}, which is not there")
        here = target.relative_to(ROOT)
        if m["image"]:
            copy(target, OUT / here)
            return f"![{m['text']}]({relative(here, page)})"
        copy(target, OUT / "_extra" / here)
        return f'<a href="{relative(here, page)}{anchor}">{m["text"]}</a>' # no page of Sphinx: the file itself
    return MARKS.sub(replaced, text)


def copy(source, target):
    "A file, with the folders above it."
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


# The API, read from exported cells

def public(tree):
    "Functions and classes that a cell defines, by their full names: a method that `@patch` adds is one of its class."
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        if "patch" in [ast.unparse(d).partition("(")[0] for d in node.decorator_list]:
            for owner in re.split(r"\W+", ast.unparse(node.args.args[0].annotation)):
                if owner:
                    yield f"{owner}.{node.name}", node
        else:
            yield node.name, node


def is_private(name):
    "Of a name with its class: whether one of them begins with an underscore."
    return any(part.startswith("_") for part in name.split("."))


def docments(source, node):
    "Rows of a table: name, type and comment of each parameter (or field), and of what is returned."
    lines = io.StringIO(source).readline
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokenize.generate_tokens(lines) if t.type == tokenize.COMMENT}
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init:
            return docments(source, init)
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_")]
        return [(n.target.id, ast.unparse(n.annotation), comments.get(n.end_lineno, "")) for n in fields]
    rows = []
    for a in parameters(node):
        rows.append((a.arg, ast.unparse(a.annotation) if a.annotation else "", comments.get(a.lineno, "")))
    if node.returns and comments.get(node.returns.end_lineno):
        rows.append(("returns", ast.unparse(node.returns), comments[node.returns.end_lineno]))
    return rows if any(comment for *_, comment in rows) else []


def parameters(node):
    "Arguments of a function, without the object that a method belongs to."
    given = node.args
    every = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs, *filter(None, [given.kwarg])]
    patched = any(ast.unparse(d).startswith("patch") for d in node.decorator_list)
    return every[1:] if every and (every[0].arg in ("self", "cls") or patched) else every


def signature(name, node):
    "How it is called; types stand in the table."
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is None:
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_")]
            return f"{name}({', '.join(n.target.id + (f'={ast.unparse(n.value)}' if n.value else '') for n in fields)})"
        node = init
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): pass").body[0].args
    for a in ast.walk(arguments):
        if isinstance(a, ast.arg):
            a.annotation = None
    kept = {a.arg for a in parameters(node)}
    for kind in ("posonlyargs", "args"):
        setattr(arguments, kind, [a for a in getattr(arguments, kind) if a.arg in kept])
    return f"{name}({ast.unparse(arguments)})"


def explained(name, node, source, module, link, depth=6):
    "The entry of a public name: signature, sentence, table of parameters, and the methods of a class."
    decorators = [ast.unparse(d) for d in node.decorator_list]
    is_property = any("property" in d for d in decorators)
    kind = "class" if isinstance(node, ast.ClassDef) else "property" if is_property else "method" if "." in name else "function"
    rows = docments(source, node)
    sentence = ast.get_docstring(node) or ""
    if is_property:
        sentence = sentence or next((comment for *_, comment in rows), "")
        rows = []
    fence = ":" * depth
    lines = [f"{fence}{{py:{kind}}} {name if is_property else signature(name, node)}", f":module: {module}", "", link(sentence), ""]
    if rows:
        cells = [[f"`{n}`", f"`{t}`" if t else "", link(c)] for n, t, c in rows]
        lines += ["| | type | |", "|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]
    lines.append("")
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            if ast.get_docstring(inner) or docments(source, inner):
                lines += [explained(f"{name}.{inner.name}", inner, source, module, link, depth - 1), ""]
    return "\n".join([*lines, fence])


# Notebooks

@cache
def cells_of(path):
    "Cells with their directives, as nbdev reads them; hidden ones are left out."
    cells = NBProcessor(path).nb.cells
    return [c for c in cells if c.cell_type != "raw" and not {"hide", "default_exp"} & c.directives_.keys() and c.source.strip()]


@cache
def module_of(path):
    "The module that a notebook exports; empty for a workflow."
    found = re.search(r"#\|\s*default_exp ([\w.]+)", path.read_text(encoding="utf8"))
    return f"teran_nb.{found[1]}" if found else ""


def parsed(cell):
    "The syntax tree of an exported cell, or None."
    return ast.parse(cell.source) if cell.cell_type == "code" and "export" in cell.directives_ else None


def public_names():
    "Every public name, and the full one that Sphinx knows it by."
    names = {}
    for path in PAGES:
        if path.suffix == ".ipynb" and module_of(path):
            for cell in cells_of(path):
                for name, _ in public(parsed(cell) or ast.Module([])):
                    if not is_private(name):
                        names[name] = f"{module_of(path)}.{name}"
    return names


def notebook(path, page, names):
    "A notebook for Sphinx: exported cells become entries of the API with their source folded; lessons stay as they are."
    out = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    def link(text): return linked(text, path, page, names)
    for cell in cells_of(path):
        if cell.cell_type == "markdown":
            out.cells.append(nbformat.v4.new_markdown_cell(link(cell.source)))
            continue
        tree = parsed(cell)
        outputs = [nbformat.from_dict(json.loads(json.dumps(o))) for o in cell.get("outputs", [])]
        for o in outputs:
            if "text/markdown" in o.get("data", {}):
                o["data"]["text/markdown"] = link("".join(o["data"]["text/markdown"]))
        code = nbformat.v4.new_code_cell(cell.source.strip(), outputs=outputs)
        if tree:
            if all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in tree.body):
                continue
            for name, node in public(tree):
                if not is_private(name):
                    text = explained(name, node, cell.source, module_of(path), link)
                    out.cells.append(nbformat.v4.new_markdown_cell(text))
            code.metadata["tags"] = ["hide-input"]
        out.cells.append(code)
    nbformat.write(out, OUT / page)


def readme(section):
    "A section of the README without its heading; of no name, what stands before the first."
    before, *sections = re.split(r"^## ", (ROOT / "README.md").read_text(encoding="utf8"), flags=re.MULTILINE)
    return before if not section else next(s.partition("\n")[2] for s in sections if s.startswith(section + "\n"))


def every_name(names):
    "The public names of each page of the library, in the order of the groups."
    lines = ["## Every name", ""]
    for group, title in GROUPS.items():
        lines.append(f"**{title}**")
        for path in sorted((ROOT / "nbs" / group).glob("*.ipynb")):
            own = [name for name, full in names.items() if full == f"{module_of(path)}.{name}" and "." not in name]
            lines.append(f"- [{path.stem[3:]}](../nbs/{group}/{path.name}): " + ", ".join(f"`{name}`" for name in own))
        lines.append("")
    return "\n".join(lines)


def document(path, page, names):
    "A document for Sphinx, with the sections of the README that it asks for."
    text = path.read_text(encoding="utf8")
    if "<!-- every name -->" in text:
        text = text.replace("<!-- every name -->", every_name(names))
    text = linked(text, path, page, names)
    def section(m): return linked(readme(m[1]), ROOT / "README.md", page, names).strip()
    (OUT / page).write_text(re.sub(r"<!-- README: ?(.*?) ?-->", section, text), encoding="utf8")


def group_page(group, title):
    "The first page of a group: its pages, each with its one sentence."
    lines = [f"# {title}", ""]
    for path in sorted((ROOT / "nbs" / group).glob("*.ipynb")):
        first = next(c.source for c in cells_of(path) if c.cell_type == "markdown")
        heading, sentence = re.match(r"# (.+?)\n+> (.+?)(?:\n\n|$)", first + "\n\n", re.DOTALL).groups()
        lines.append(f"- [{heading}]({path.name}): {sentence}")
    listed = [path.name for path in sorted((ROOT / "nbs" / group).glob("*.ipynb"))]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *listed, "```", ""])


def main():
    "Write everything anew."
    shutil.rmtree(OUT, ignore_errors=True)
    names = public_names()
    for path, page in PAGES.items():
        (OUT / page).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            notebook(path, page, names)
        else:
            document(path, page, names)
    for group, title in GROUPS.items():
        (OUT / group / "index.md").write_text(group_page(group, title), encoding="utf8")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, OUT / "_extra" / folder, dirs_exist_ok=True)
    shutil.copyfile(ROOT / "docs" / "view.html", OUT / "_extra" / "view.html")


if __name__ == "__main__":
    main()
