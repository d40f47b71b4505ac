"""Hostile text in captions, image ids, names and kinds: every page shows it as text, asks nothing of a network and reports no error.

`python tests/campaigns/pages.py --seed 0 --cases 33` prints a table and ends with status 1 unless its last four columns are zero. It needs Chromium and Playwright.
"""
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
from common import Table, arguments, describe
from readers import TINY

from teran_nb.core.processes import seed_everything
from teran_nb.data.captions import Captions, Link
from teran_nb.data.collection import Collection, Image
from teran_nb.data.features import Features
from teran_nb.data.features import FeatureWriter
from teran_nb.measure.evaluation import evaluate
from teran_nb.look.explorer import Explorer
from teran_nb.look.finder import Finder
from teran_nb.look.view import AlignmentView
from teran_nb.look.website import write_site
from teran_nb.model.network import Network

RUN = "document.title='ran';window.ran=1;alert(1);fetch('http://198.51.100.1/x')"
PAYLOADS = [
    f"<script>{RUN}</script>", f"</script><script>{RUN}</script>", f"<img src=x onerror={RUN!r}>", f"<svg onload=\"{RUN}\">", f"\"><script>{RUN}</script>",
    f"'><script>{RUN}</script>", f"\" onmouseover=\"{RUN}\" x=\"", f"' onfocus='{RUN}' autofocus '", f"<iframe src=\"javascript:{RUN}\"></iframe>",
    f"<a href=\"javascript:{RUN}\">x</a>", f"javascript:{RUN}", f"<iframe srcdoc=\"<script>{RUN}</script>\"></iframe>", "<base href='http://198.51.100.1/'>",
    "<link rel=stylesheet href='http://198.51.100.1/a.css'>", "<style>@import 'http://198.51.100.1/a.css';</style>", "</style><style>body{display:none}</style>",
    "</title><meta http-equiv=refresh content='0;url=http://198.51.100.1/'>", "<form action='http://198.51.100.1/'><input name=a></form>", "<!-- --> <![CDATA[ x ]]>",
    "{{ 7*7 }} {% raw %} ${7*7} #{7*7}", "\\u003cscript\\u003e", "&lt;script&gt; &amp; &#60;img&#62;", "\u2028\u2029 <b>bold</b>", "\u202e\u2066 right to left \u2069",
    "\ufeff\u200b\u00ad invisible", "\ud7ff\ue000\ufdd0 \U0001f3f4\u200d\u2620\ufe0f", "%3Cscript%3E %00 %2e%2e%2f", "../../../etc/passwd", "a|b `code` **bold** [x](javascript:alert(1)) $x$",
    f"<math><mtext><table><mglyph><style><img src=x onerror=\"{RUN}\">", f"<details open ontoggle=\"{RUN}\">", f"<template><script>{RUN}</script></template><noscript><p title=\"</noscript><img src=x onerror={RUN!r}>\">",
    "<p style=\"position:fixed;inset:0;background:url(http://198.51.100.1/b.png)\">"]
assert len(PAYLOADS) == 33


def hostile_collection(folder, payloads, rng):
    "Every text that reaches a page is hostile."
    folder.mkdir(parents=True)
    ids = [f"{i} {p}" for i, p in enumerate(payloads)]
    values = np.random.default_rng(rng.randrange(2**31))
    with FeatureWriter(folder / "features", f"toy {payloads[0]}", 12, "float32", class_names=payloads) as w:
        for i, image_id in enumerate(ids):
            corners = np.sort(values.uniform(0, 99, (3, 2, 2)), 1).reshape(3, 4) + [0, 0, 1, 1]
            w.add(image_id, values.normal(size=(3, 12)), corners, (100, 100), [i, i, i])
    texts = [f"a kite {p} house" for p in payloads]
    links = [(Link(2, 6, p, ((1.0, 2.0, 30.0, 40.0),)),) for p in payloads]
    captions = Captions(texts, range(len(ids)), ids, np.full((len(ids), 2), 100.0), ["test"] * len(ids), links)
    return Collection(Features(folder / "features"), captions, name=f"collection {payloads[-1]}")



def write_pages(folder, payloads, rng):
    "All kinds of pages of such a collection, and a text that each must show."
    collection = hostile_collection(folder / "collection", payloads, rng)
    seed_everything(0)
    model = Network.build(TINY, collection.captions.texts).eval()
    picture = PIL.Image.new("RGB", (100, 100), "orange")
    pages = []
    for i, payload in enumerate(payloads):
        a = model.align(collection.features[i], collection.captions.texts[i])
        a = replace(a, image=Image(a.image_id, picture=picture), model_note=payload, warning=payload)
        path = folder / f"view-{i}.html"
        AlignmentView([a], names=[payload]).save(path)
        pages.append(("view", path))
    write_site(folder / "site", collection, evaluate(model, collection))
    pages += [("site", p) for p in sorted((folder / "site").rglob("*.html"))]
    explorer = Explorer(Finder(model, collection), output=folder / "explorer")
    explorer.save(folder / "explorer.html")
    pages.append(("explorer", folder / "explorer.html"))
    return pages


def look(browser, path):
    "Open a page, press and point at what can be pressed; what it did that a page must not."
    context = browser.new_context(offline=True)
    page = context.new_page()
    dialogs, requests, errors = [], [], []
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "about:", "blob:")) else requests.append(r.url))
    try:
        page.goto(path.as_uri())
        for element in page.locator(".word, button, summary").all()[:6]:
            try:
                element.hover(timeout=300)
                element.click(timeout=300)
            except Exception:
                pass  # it is hidden or covered
        ran = page.evaluate("() => !!window.ran || document.title == 'ran'")
        shown = "house" in page.evaluate("() => document.documentElement.textContent")
    finally:
        context.close()
    if ran or dialogs or requests:
        return "executed", f"{dialogs} {requests[:3]}"
    if errors:
        return "raw", str(errors[:3])
    return ("right", "") if shown else ("lost", "the captions are not shown")


def campaign(seed, cases, only=""):
    from playwright.sync_api import sync_playwright
    rng, table = random.Random(seed), Table()
    payloads = PAYLOADS[:]
    rng.shuffle(payloads)
    payloads = payloads[:max(4, cases)]
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for kind, path in write_pages(Path(folder), payloads, rng):
            if only in kind:
                try:
                    table.add(kind, *look(browser, path))
                except Exception as e:
                    table.add(kind, "raw", f"{path.name}: {describe(e)}")
        browser.close()
    return table


if __name__ == "__main__":
    a = arguments(__doc__.splitlines()[0], 33)
    campaign(a.seed, a.cases, a.only).end()
