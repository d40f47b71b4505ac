"""The site: its pages say what the package says, and a browser without network shows them. `docs/build` makes it; .ci/run does so before the tests."""
import functools
import http.server
import re
import runpy
import sys
import threading

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import pages

SITE = ROOT / "_docs"
SHOWN = ("index", "start", "models", "names", "tour", "model/01_losses", "core/00_packed", "look/03_view", "RESULTS", "results/board", "pictures")


def block(source, name="f"):
    "The entry of the first name of an exported cell."
    cell, = pages.public(pages.ast.parse(source))
    return pages.explained(*cell, source, "teran_nb.group.page", link=str)


def test_an_entry_has_the_signature_and_a_row_for_each_parameter():
    entry = block('''def f(
    sim:Tensor, # Similarities, `(images, captions)`
    *,
    margin:float|None=.2, # At least 0
) -> Tensor: # Of each pair
    "What a pair costs."''')
    assert entry.startswith("::::::{py:function} f(sim, *, margin=0.2)\n:module: teran_nb.group.page\n\nWhat a pair costs.\n")
    assert "| `sim` | `Tensor` | Similarities, `(images, captions)` |\n| `margin` | `float\\|None` | At least 0 |".replace("float\\|None", "float \\| None") in entry
    assert "| `returns` | `Tensor` | Of each pair |" in entry


def test_an_entry_of_a_class_has_its_fields_and_methods():
    entry = block('''class Box:
    "A rectangle."
    left:int # In pixels
    width:int=1 # Too
    _hidden:int=0
    @property
    def right(self) -> int: return self.left+self.width # Its other end
    def moved(self,
        by:int, # To the right
    ):
        "Another one."
    def _private(self): "Not shown."''')
    assert "{py:class} Box(left, width=1)" in entry and "| `left` | `int` | In pixels |" in entry
    assert "{py:property} Box.right" in entry and "{py:method} Box.moved(by)" in entry
    assert "hidden" not in entry and "private" not in entry


def test_a_patched_method_belongs_to_its_class():
    assert "{py:method} Box.area(scale=1)" in block("@patch\ndef area(self:Box, scale:int=1):\n    'In pixels.'")


def test_links_lead_into_the_site():
    text = "[losses](../nbs/model/01_losses.ipynb#the-check), [model](../nbs/model), [licence](../LICENSE), `mrsw`, `[x](y)`, [a](https://b.c)"
    page = pages.Path("start.md")
    shown = pages.linked(text, ROOT / "docs/start.md", page, {"mrsw": "teran_nb.model.alignment.mrsw"})
    assert "[losses](model/01_losses.ipynb#the-check), [model](model/index.md), <a href=\"LICENSE\">licence</a>" in shown
    assert "{py:obj}`mrsw <teran_nb.model.alignment.mrsw>`, `[x](y)`, [a](https://b.c)" in shown
    with pytest.raises(FileNotFoundError, match="links to gone.md"):
        pages.linked("[gone](gone.md)", ROOT / "docs/start.md", page, {})


def test_the_page_of_names_is_that_of_the_package():
    import teran_nb

    names = pages.public_names()
    rows = re.findall(r"\[((?:`\w+`(?:, )?)+)\]\((\S+?)\)", (ROOT / "docs/names.md").read_text(encoding="utf8"))
    for listed, link in rows:
        module = pages.module_of((ROOT / "docs" / link).resolve())
        for name in re.findall(r"\w+", listed):
            assert names[name] == f"{module}.{name}" and getattr(teran_nb, name).__module__ == module
    listed = {name for row, _ in rows for name in re.findall(r"\w+", row)}
    assert set(teran_nb.__all__) <= listed, set(teran_nb.__all__) - listed


def test_the_stored_view_is_of_the_view_of_today():
    stored = (ROOT / "docs/view.html").read_text(encoding="utf8")
    for name in ("view.css", "view.js"):
        assert (ROOT / "teran_nb/look/templates" / name).read_text(encoding="utf8").strip() in stored, f"{name} changed: make docs/view.html again, as docs/index.md says"


def test_the_code_of_the_pages_runs(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/searching.md").read_text(encoding="utf8"), re.DOTALL)[1]
    (tmp_path / "code.py").write_text(code)
    monkeypatch.chdir(ROOT)
    found = runpy.run_path(str(tmp_path / "code.py"))
    assert len(found["hits"]) == 10 and "bike" in found["hits"][0].alignment.words


class Quiet(http.server.SimpleHTTPRequestHandler):
    "Serves a folder and prints nothing."
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site():
    "The address of the built site on this machine."
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: pip install -e '.[docs]' -c constraints.txt && docs/build")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def opened(site, browser):
    "Opens a page and keeps the requests to other hosts, and the errors of its scripts."
    contexts = []

    def open_page(name, width=1280, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.abroad, page.errors = [], []
        page.on("request", lambda r: page.abroad.append(r.url) if r.url.startswith("http") and not r.url.startswith(site) else None)
        page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: page.errors.append(str(e)))
        page.goto(f"{site}/{name}.html", timeout=120_000)
        page.wait_for_load_state("networkidle")
        return page
    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("scheme", "widths"), [("light", (1280, 390)), ("dark", (390, 1280))])
def test_pages_fit_and_ask_no_other_host(opened, screens, scheme, widths):
    "A page is loaded at the first width, and its window then gets the second one."
    for name in SHOWN:
        page = opened(name, widths[0], scheme)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=screens / f"site-{name.replace('/', '-')}-{width}-{scheme}.png")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the window"
        assert not page.abroad and not page.errors, (name, page.abroad, page.errors)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_formulas_are_set(opened):
    page = opened("model/01_losses")
    page.wait_for_selector("mjx-container")
    assert page.locator("mjx-container").count() > 10 and not page.locator("mjx-merror").count()
    assert not page.abroad


def test_the_search_finds_a_name_and_a_word(opened):
    for query, expected in (("info_nce", "Losses"), ("hardest negatives", "Losses")):
        page = opened("index")
        page.goto(page.url.replace("index.html", f"search.html?q={query}"))
        page.wait_for_selector("#search-results li")
        page.wait_for_function("document.querySelector('#search-results').innerText.includes('found')")
        assert expected in page.locator("#search-results").inner_text()
        assert not page.abroad


@pytest.mark.parametrize("name", ["index", "tour", "look/03_view"])
def test_a_view_answers_to_hovering(opened, name):
    page = opened(name)
    frame = page.frame_locator("iframe").first
    word = frame.locator(".word").nth(1)
    page.locator("iframe").first.scroll_into_view_if_needed() # a frame outside the window does not draw
    word.hover()
    assert word.get_attribute("data-active") == "true" and frame.locator(".box[data-active=true]").count() == 1
    assert not page.abroad


def test_an_entry_stands_above_its_lesson(opened):
    page = opened("model/01_losses")
    entry = page.locator("dl.py", has=page.locator("[id='teran_nb.model.losses.info_nce']"))
    assert "returns" in entry.inner_text()
    lesson = page.locator("dl.py:has([id='teran_nb.model.losses.info_nce']) ~ div.cell").first
    assert lesson.locator("details summary").count() == 1 # the source, folded; the lesson follows
