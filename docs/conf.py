"""Sphinx's settings for the site. Nothing of it comes from another host: MathJax travels with the site, and so do fonts and icons."""
import configparser
import importlib
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
settings = configparser.ConfigParser(delimiters=["="])
settings.read(ROOT / "settings.ini", encoding="utf8")
settings = settings["DEFAULT"]

project = settings["lib_name"]
author = settings["author"]
copyright = settings["copyright"]
release = version = settings["version"]
html_title = f"{project} {release}"

extensions = ["myst_nb", "sphinx.ext.mathjax"]
root_doc = "index"
html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_extra_path = ["../_proc/source/_extra"]
exclude_patterns = ["_extra"]
html_show_sourcelink = html_copy_source = False
html_theme_options = {"show_navbar_depth": 1, "use_download_button": False, "use_fullscreen_button": False, "show_toc_level": 2, "search_bar_text": "Search", "navbar_persistent": []}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system

nb_execution_mode = "off"  # pages show the stored outputs
nb_render_markdown_format = "myst"
nb_ipywidgets_js = {}      # widgets need a kernel, and their scripts would come from another host
nb_code_prompt_show = nb_code_prompt_hide = "Source"
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # an entry of the API stands below headings of any level

add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True

mathjax_path = "mathjax/tex-chtml.js"  # a path in _static
MATHJAX = ["tex-chtml.js", "output/chtml/fonts/woff-v2"]


def vendor_mathjax(app, exception):
    "Copy what a browser loads for formulas, from the package that carries MathJax 3."
    source = Path(importlib.import_module("sphinx-mathjax-offline").__file__).parent / "static/mathjax"
    target = Path(app.outdir) / "_static/mathjax"
    for name in MATHJAX:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        copy(source / name, target / name, **({"dirs_exist_ok": True} if (source / name).is_dir() else {}))


def setup(app):
    "Sphinx calls this."
    app.connect("build-finished", vendor_mathjax)
