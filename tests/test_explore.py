"""The explorer as a user meets it: JupyterLab in a real browser, papermill's output, and the page that it saves.

Screenshots are kept in runs/screenshots, which is named at the end of the log.
"""
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from conftest import ROOT, papermill

from teran_nb.scenes.drawing import compose

SENTENCE = "a red kite above the small house"


@pytest.fixture(scope="module")
def lab(trained, tmp_path_factory):
    "JupyterLab in a folder with the explorer of a tiny model, which stands there twice."
    folder = tmp_path_factory.mktemp("lab")
    nb = nbformat.read(ROOT / "nbs" / "explore.ipynb", as_version=4)
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += f'\nrun = {json.dumps({"one": str(trained), "two": str(trained)})}\ndata = "scenes:tiny"\ndevice = "cpu"\noutput = {str(folder / "pages")!r}'
    nbformat.write(nb, folder / "explore.ipynb")
    settings = folder / ".settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JUPYTER_CONFIG_DIR": str(folder / ".config"), "JUPYTER_RUNTIME_DIR": str(folder / ".runtime")}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip", "127.0.0.1", "--port", str(port), "--ServerApp.token=", "--ServerApp.password=",
               f"--LabApp.user_settings_dir={folder / '.settings'}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"]
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=2).close()
            break
        except OSError:
            assert server.poll() is None, (folder / "lab.log").read_text()[-2000:]
            time.sleep(.2)
    yield f"http://127.0.0.1:{port}", folder
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:  # it waits for its kernels
        server.kill()
        server.wait(20)


def ranks(page):
    return page.locator(".teran-root figure[data-rank]:visible").evaluate_all("all => all.map(e => e.dataset.item)")


def changed(page, old):
    "Wait until the results are others than the old ones."
    for _ in range(100):
        if ranks(page) and ranks(page) != old:
            return ranks(page)
        time.sleep(.1)
    raise AssertionError(f"the results stayed as they were: {old}")


def click_at_rest(button):
    "Scroll to the button, and click once it has stayed in its place for a second: JupyterLab moves the page while it scrolls."
    button.scroll_into_view_if_needed()
    seen = []
    for _ in range(300):
        seen = [*seen[-9:], button.bounding_box()]
        if len(seen) == 10 and all(box == seen[0] for box in seen):
            return button.click()
        time.sleep(.1)
    raise AssertionError(f"the page does not come to rest: {seen}")


def run_all(page):
    "Run all cells; what is run while the kernel is still being connected is lost, so it is asked for again."
    from playwright.sync_api import Error

    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    for _ in range(5):
        page.get_by_text("Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).click()
        try:
            return page.wait_for_function("[...document.querySelectorAll('.jp-InputPrompt')].some(e => /[*\\d]/.test(e.textContent))", timeout=4000)
        except Error:
            continue
    raise AssertionError("JupyterLab runs no cell")


def test_type_click_hover(lab, browser, screens):
    url, folder = lab
    errors, requests = [], []
    page = browser.new_context(viewport={"width": 1280, "height": 1300}).new_page()
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith((url, url.replace("http", "ws"), "data:", "blob:", "about:")) else requests.append(r.url))
    page.goto(f"{url}/lab/tree/explore.ipynb")
    run_all(page)
    root = page.locator(".teran-root")
    root.locator("figure[data-rank='0']").first.wait_for(timeout=60_000)
    assert page.locator("[class^=teran-static]").is_hidden(), "the static page is for readers without a kernel"
    first = ranks(page)

    search = root.get_by_label("Search")
    search.fill(SENTENCE)
    search.press("Enter")
    second = changed(page, first)
    root.scroll_into_view_if_needed()
    page.screenshot(path=screens / "explore-1280.png")

    root.get_by_role("button", name="kite", exact=True).click()
    root.locator(".spot").first.wait_for()
    root.get_by_label("Replace by").fill("boat")
    root.get_by_label("Replace by").press("Enter")
    changed(page, second)
    root.locator(".move:visible").nth(11).wait_for(timeout=30_000)
    assert search.input_value() == SENTENCE.replace("kite", "boat")
    page.screenshot(path=screens / "explore-1280-edited.png")

    root.get_by_role("button", name="Show why").first.click()
    view = root.frame_locator("iframe.teran-view")
    word = view.locator(".word").nth(2)
    word.hover()
    lit = view.locator(".box[data-active=true]")
    assert lit.count() == 1 and f"region {lit.get_attribute('data-region')}" in word.get_attribute("aria-label")
    page.screenshot(path=screens / "explore-1280-view.png")
    assert root.get_by_text("Find it in all pictures").is_hidden() and root.get_by_text("Cosine at least (0: any)").is_hidden(), "nothing to choose among"
    assert root.locator("b", has_text=re.compile("^scene-")).is_visible()
    click_at_rest(root.get_by_role("button", name="Save this page"))
    root.get_by_text("saved:").wait_for()
    root.get_by_role("button", name="Back to the results").click()

    root.get_by_text("Picture → sentences").click()
    root.get_by_role("button", name="Ask by picture").nth(3).click()
    root.locator("figure.row[data-true=true]").nth(1).wait_for(timeout=30_000)
    compose(3).picture().save(folder / "own.png")
    root.get_by_role("button", name="Another picture").click()
    with page.expect_file_chooser() as chooser:
        upload = root.get_by_role("button", name="Upload a picture")
        assert upload.evaluate("e => getComputedStyle(e).fontSize") == "0px", "its text has a number of files, which is always 0"
        upload.click()
    chooser.value.set_files(folder / "own.png")
    root.get_by_text("own.png").wait_for(timeout=30_000)
    root.locator("figure.row[data-rank='0']:visible").nth(1).wait_for()
    page.screenshot(path=screens / "explore-1280-own.png")
    page.keyboard.press("Control+b")
    page.set_viewport_size({"width": 390, "height": 1300})
    root.evaluate("e => e.scrollIntoView()")
    page.screenshot(path=screens / "explore-390.png")
    assert not errors and not requests, (errors, requests)
    page.keyboard.press("Control+s")
    for _ in range(100):
        if "To search, run the cell" in (folder / "explore.ipynb").read_text():
            break
        time.sleep(.1)

    page.get_by_text("Kernel", exact=True).first.click()
    page.get_by_text("Restart Kernel…", exact=True).click()
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    page.get_by_text("To search, run the cell").wait_for(timeout=30_000)
    assert root.is_hidden() and page.locator("[class^=teran-static] figure[data-rank]").first.is_visible(), "dead widgets give way to the page without widgets"
    page.screenshot(path=screens / "explore-390-restarted.png")
    page.reload()
    page.get_by_text("To search, run the cell").wait_for(timeout=60_000)
    dead = page.get_by_text("Error displaying widget")
    dead.wait_for(state="attached", timeout=30_000)
    assert dead.is_hidden(), "JupyterLab's error about widgets without a kernel gives way to the page, too"
    page.context.close()

    saved, = (folder / "pages").glob("*.html")
    errors, requests = [], []
    page = browser.new_context(viewport={"width": 390, "height": 900}, offline=True).new_page()
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "about:")) else requests.append(r.url))
    page.goto(saved.as_uri())
    page.frame_locator("iframe").locator(".word").nth(2).hover()
    assert page.frame_locator("iframe").locator(".box[data-active=true]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") == 390 and page.locator("figure[data-rank]").count() >= 24
    assert page.get_by_text("The result that was opened, word by word").is_visible()
    page.screenshot(path=screens / "explore-saved-390.png", full_page=True)
    assert not errors and not requests, (errors, requests)
    page.context.close()


def test_without_a_kernel(trained, browser, screens, tmp_path):
    "papermill's output as a static page with scripts of its own switched off: the results are there."
    papermill("explore", tmp_path / "out.ipynb", run=str(trained), device="cpu", output=str(tmp_path / "pages"), query="two boats </script><img src=x onerror=alert(1)>")
    subprocess.run([sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", str(tmp_path / "out.ipynb")], check=True, capture_output=True, timeout=120)
    page = browser.new_context(viewport={"width": 1280, "height": 1300}, offline=True, java_script_enabled=False).new_page()
    page.goto((tmp_path / "out.html").as_uri())
    shown = page.locator("[class^=teran-static] figure[data-rank]")
    assert shown.count() >= 12 and shown.first.is_visible()
    assert shown.first.locator("img").evaluate("e => e.naturalWidth") > 50
    assert page.locator("img[src=x]").count() == 0
    shown.first.scroll_into_view_if_needed()
    page.screenshot(path=screens / "explore-static.png")
    page.context.close()
