"""What only a real browser can say: pages open without a network, answer to the pointer and the keyboard, and run nothing that a caption brings along.

Screenshots are kept in runs/screenshots, which is named at the end of the log.
"""
import html
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from conftest import ROOT
from teran_nb.data.collection import Image
from teran_nb.scenes.drawing import compose
from teran_nb.training.datasets import load_data
from teran_nb.measure.evaluation import evaluate
from teran_nb.training.recipe import recipe
from teran_nb.look.website import write_site
from teran_nb.look.view import AlignmentView, TEMPLATES
from teran_nb.model.network import Network
from teran_nb.model.encoded import Alignment

pytestmark = pytest.mark.xdist_group("browser")
HOSTILE = "</script><img src=x onerror=document.title='broken'> a <b>kite</b> & \u2028 ${1}"


@pytest.fixture
def offline(browser):
    "Opens a file with networking off; at the end no error stands in the console and no request has left the page."
    contexts, errors, requests = [], [], []

    def go(path, width=1280, scheme="light", touch=False):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True, has_touch=touch)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "about:")) else requests.append(r.url))
        page.goto(Path(path).as_uri())
        return page

    yield go
    for c in contexts:
        c.close()
    assert not errors and not requests


def pair(caption, words=36, regions=36, seed=0):
    "A scene of 36 regions and an alignment in which region 0 fits word 1 best and region 1 next."
    scene, rng = compose(3), np.random.default_rng(seed)
    texts = [(m[0], m.span()) for m in re.finditer(r"\w+", caption)][:words]
    corners = rng.uniform(0, .6, (regions, 2))
    boxes = np.hstack([corners, corners + rng.uniform(.1, .4, (regions, 2))]) * [*scene.size, *scene.size]
    things = [t.box for t in scene.things]
    boxes[:len(things)] = things
    cosines = torch.from_numpy(rng.uniform(-.2, .3, (regions, len(texts)))).float()
    if len(texts) > 1:
        cosines[0, 1], cosines[1, 1], cosines[2, 1] = .81, .62, .43
    return Alignment([w for w, _ in texts], cosines, boxes, scene.size, caption, [s for _, s in texts], Image("scene-3", picture=scene.picture))


FIVE = ["a red kite above the small house", "two kittens on a wall, one asleep", "there is a boat", "a dog next to a tree and a car", "sunny day"]


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "five.html"
    AlignmentView([pair(c, seed=i) for i, c in enumerate(FIVE)]).save(path)
    return path


def active(page, kind):
    key = {"word": "word", "box": "region"}[kind]
    return [int(e.get_attribute(f"data-{key}")) for e in page.locator(f".{kind}[data-active=true]").all()]


def slide(page, name, value):
    page.locator(f"#{name}").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(value))


def test_a_word_says_how_much_it_counts(tmp_path, offline):
    alignment = pair(FIVE[0])
    AlignmentView(replace(alignment, weights=torch.linspace(.5, 1.5, len(alignment.words)))).save(tmp_path / "weights.html")
    page = offline(tmp_path / "weights.html")
    page.locator(".word").first.hover()
    assert page.locator("#status").inner_text().endswith("; the word counts 0.50 times")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_lights_its_boxes(five, offline, screens, width, scheme):
    page = offline(five, width, scheme)
    page.screenshot(path=screens / f"view-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    slide(page, "k", 3)
    page.locator(".word").nth(1).hover()
    assert active(page, "word") == [1] and sorted(active(page, "box")) == [0, 1, 2]
    assert page.locator(".box[data-rank='1']").get_attribute("data-region") == "0"
    assert page.locator(".chip span").all_inner_texts() == ["0.81", "0.62", "0.43"]
    assert "red”: region 0 at 0.81, region 1 at 0.62" in page.locator("#status").inner_text()
    assert "counts" not in page.locator("#status").inner_text()
    assert page.locator(".band").count() == 4
    page.screenshot(path=screens / f"view-{width}-{scheme}-word.png", full_page=True)
    slide(page, "least", .5)
    assert sorted(active(page, "box")) == [0, 1]
    assert page.locator(".word").nth(0).get_attribute("data-below") == "true"


def test_a_box_lights_its_words_and_a_click_pins(five, offline, screens):
    page = offline(five)
    page.locator("#rows [data-region='0']").hover()
    assert active(page, "box") == [0] and 1 in active(page, "word")
    assert page.locator(".chip").inner_text() == "region 0red 0.81"
    page.screenshot(path=screens / "view-box.png")
    page.locator(".word").nth(1).click()
    page.mouse.move(5, 5)
    assert active(page, "word") == [1] and page.locator(".word").nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert active(page, "word") == [] and active(page, "box") == []


def test_a_word_is_spread_over_the_picture(five, offline, screens, tmp_path):
    "The map in the page is the one of `Alignment.heat` (the page has boxes of one decimal); for patches it is shown without a click."
    page = offline(five)
    page.locator(".word").nth(1).hover()
    assert not page.locator("#cloud").is_visible()
    page.locator(".word").nth(1).click()
    page.locator("#spread").check()
    assert page.locator("#cloud").is_visible() and page.locator("#stage").get_attribute("data-cloud") is not None
    page.screenshot(path=screens / "view-map.png", full_page=True)
    page.keyboard.press("Escape")
    def darkest():
        return page.evaluate("""(() => {
            const copy = document.createElement("canvas").getContext("2d"), {width, height} = $("cloud");
            Object.assign(copy.canvas, {width, height});
            copy.drawImage($("cloud"), 0, 0);
            return Math.max(...copy.getImageData(0, 0, width, height).data.filter((_, i) => i % 4 == 3));
        })()""")
    strong = darkest()
    page.locator(".word").nth(0).hover()
    assert strong == 215 and 215 * .25 - 1 < darkest() < 215 * .5, "a weak word's map is paler"
    page.mouse.move(5, 5)
    assert not page.locator("#cloud").is_visible()
    side = 24
    y, x = (v.ravel() for v in np.mgrid[:side, :side])
    patches = replace(pair("a red kite", regions=side * side), boxes=(np.stack([x, y, x + 1, y + 1], 1) * [320, 240, 320, 240] / side).round(1), size=(320, 240))
    AlignmentView(patches).save(tmp_path / "patches.html")
    assert (tmp_path / "patches.html").stat().st_size < 200_000
    page = offline(tmp_path / "patches.html")
    page.locator(".word").nth(1).hover()
    assert page.locator("#cloud").is_visible()
    page.screenshot(path=screens / "view-patches.png", full_page=True)
    drawn = page.evaluate("(() => { const c = cloudOf(1); return {rows: c.rows, values: [...c.values].map(v => Number.isNaN(v) ? null : v)}; })()")
    heat = patches.heat(1)
    assert drawn["rows"] == len(heat)
    assert np.allclose([np.nan if v is None else v for v in drawn["values"]], heat.ravel().tolist(), atol=1e-4, equal_nan=True)
    low, high = page.locator("#spread-is").inner_text().replace("\u2212", "-").split(" to ")
    assert abs(float(low) - float(heat[~heat.isnan()].min())) < .006 and abs(float(high) - float(heat[~heat.isnan()].max())) < .006
    page.locator(".word").nth(2).hover()
    page.locator(".word").nth(1).hover()
    assert page.evaluate("[...pair.clouds.keys()].sort()") == [1, 2]  # each map is computed once


def test_small_boxes_lie_on_top(five, offline):
    areas = offline(five).locator(".box").evaluate_all("all => all.map(e => e.getAttribute('width') * e.getAttribute('height'))")
    assert len(areas) == 36 and areas == sorted(areas, reverse=True)


def test_keyboard(five, offline):
    page = offline(five)
    for key in ("Tab", "Tab", "ArrowRight"):
        page.keyboard.press(key)
    assert active(page, "word") == [1] and active(page, "box") == [0]
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    assert active(page, "word") == [0]
    page.locator(".word").nth(0).blur()
    assert active(page, "word") == [1]
    page.keyboard.press("Escape")
    assert active(page, "word") == []


def test_tabs(five, offline):
    page = offline(five)
    tabs = page.locator("[role=tab]")
    assert tabs.all_inner_texts() == FIVE
    tabs.nth(1).click()
    assert " ".join(page.locator(".word span").all_inner_texts()) == "two kittens on a wall one asleep"
    page.keyboard.press("ArrowRight")
    assert tabs.nth(2).get_attribute("aria-selected") == "true" and page.locator(".word").count() == 4


def test_touch(five, offline):
    page = offline(five, 390, touch=True)
    page.locator(".word").nth(1).tap()
    assert active(page, "word") == [1] and active(page, "box") == [0]


def test_hostile_text_is_text(offline, tmp_path):
    a = replace(pair(HOSTILE), image=Image(HOSTILE, picture=compose(3).picture))
    AlignmentView([replace(a, model_note=HOSTILE), a], [HOSTILE, "b"]).save(tmp_path / "hostile.html")
    page = offline(tmp_path / "hostile.html")
    page.locator(".word").nth(0).hover()
    assert page.title() == "Alignment" and page.locator("img").count() == 1 and page.locator("#caption b").count() == 0
    text = page.locator("#caption").evaluate("e => [...e.childNodes].map(n => n.nodeType === 3 ? n.data : n.firstChild.textContent).join('')")
    assert text == HOSTILE and page.locator("[role=tab]").nth(0).text_content() == HOSTILE and HOSTILE in page.locator("#notes").text_content()


def test_words_left_out_other_scripts_and_many_regions(offline, tmp_path, screens):
    long = " ".join(f"word{j}" for j in range(200))
    odd = [pair("חתול אדום על הבית", words=3), pair("一只 红色 风筝"), pair("🪁 a kite 🐈"), pair("!"), pair(long, 200, 300), replace(pair("a kite"), boxes=None),
           replace(pair("a kite"), image=Image("scene-3", path=tmp_path / "gone.png"))]
    AlignmentView(odd).save(tmp_path / "odd.html")
    page = offline(tmp_path / "odd.html")
    tabs, notes = page.locator("[role=tab]"), page.locator("#notes")
    assert page.locator("#caption").evaluate("e => getComputedStyle(e).direction") == "rtl" and "take no part" in notes.inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert active(page, "word") == [1]
    for i, (words, note) in enumerate([(3, "take no part"), (3, ""), (2, ""), (0, "no word to align"), (200, ""), (2, "without boxes"), (2, "cannot be shown")]):
        tabs.nth(i).click()
        assert page.locator(".word").count() == words and note in notes.text_content()
        if words > 1:
            page.locator(".word").nth(1).hover()
            assert active(page, "word") == [1] and active(page, "box") == ([0] if i != 5 else [])
        page.screenshot(path=screens / f"odd-{i}.png", full_page=True)


def test_a_hover_is_drawn_in_the_next_frame(five, offline):
    page = offline(five)
    slide(page, "k", 5)
    lit = page.evaluate("""async () => {
      const lit = [];
      for (let i = 0; i < 14; i++) {
        const word = document.querySelectorAll('.word')[i % 7];
        word.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        await new Promise(requestAnimationFrame);
        lit.push([word.dataset.active, document.querySelectorAll('.word[data-active=true]').length]);
      }
      return lit;
    }""")
    assert lit == [["true", 1]] * 14


def test_in_a_cell_the_frame_answers_and_hides_the_figure(offline, tmp_path):
    bundle = AlignmentView(pair(FIVE[0]))._repr_mimebundle_()["text/html"]
    (tmp_path / "cell.html").write_text(f"<!DOCTYPE html><title>t</title><body>{bundle}</body>", encoding="utf8")
    (tmp_path / "stripped.html").write_text(re.sub("<iframe.*?</iframe>", "", bundle, flags=re.S), encoding="utf8")
    page = offline(tmp_path / "cell.html", 1000)
    assert page.locator("img").is_hidden() and page.locator("img").get_attribute("alt") == html.unescape(FIVE[0])
    frame = page.frame_locator("iframe")
    frame.locator(".word").nth(1).hover()
    assert frame.locator(".box[data-active=true]").get_attribute("data-region") == "0"
    assert offline(tmp_path / "stripped.html").locator("img").is_visible()


@pytest.mark.parametrize("is_light", ["true", "false"])
def test_a_cell_has_the_colours_of_the_notebook(offline, tmp_path, is_light):
    bundle = AlignmentView(pair(FIVE[0]))._repr_mimebundle_()["text/html"]
    (tmp_path / "cell.html").write_text(f"<!DOCTYPE html><title>t</title><body data-jp-theme-light={is_light}>{bundle}</body>", encoding="utf8")
    frame = offline(tmp_path / "cell.html", scheme="null").frame_locator("iframe")  # an emulated setting would hold in the frame too
    paper = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert paper == {"true": "rgb(255, 255, 255)", "false": "rgb(20, 23, 27)"}[is_light]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "A gallery site of the tiny world, by a model that was never trained."
    data, folder = load_data("scenes:tiny"), tmp_path_factory.mktemp("site")
    config = recipe(scale="tiny").network
    config = replace(config, regions=replace(config.regions, features=data.test.features.dim))
    torch.manual_seed(0)
    model = Network.build(config, data.train.captions.texts).eval()
    write_site(folder, data.test, evaluate(model, data.test))
    return folder


@pytest.mark.parametrize("script", sorted(p.name for p in TEMPLATES.folder.glob("*.js")))
def test_scripts_parse(script):
    if not shutil.which("node"):
        pytest.skip("Node.js is missing: apt-get update && apt-get install -y nodejs")
    done = subprocess.run(["node", "--check", TEMPLATES.folder / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_of_the_site_lights_its_boxes(site, offline, screens, width):
    page = offline(site / "sentences-1.html", width)
    card = page.locator(".card").first
    card.locator(".word").nth(1).hover()
    assert card.locator(".spot").count() == card.locator(".picture").count() == 6
    inside = "e => { const s = e.getBoundingClientRect(), p = e.parentElement.getBoundingClientRect(); return s.left >= p.left - 1 && s.right <= p.right + 1 }"
    assert all(card.locator(".spot").evaluate_all(f"all => all.map({inside})"))
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.screenshot(path=screens / f"site-{width}.png", full_page=True)
    card.locator(".word").nth(2).focus()
    assert card.locator(".lit").count() == 1 and card.locator(".spot").count() == 6


def test_pictures_of_a_row_have_one_height_and_their_own_shape(site, offline):
    page = offline(site / "sentences-1.html")
    sizes = page.locator(".card").first.locator("img").evaluate_all("all => all.map(e => [e.clientWidth / e.clientHeight, e.width / e.height, e.clientHeight])")
    assert len({round(height) for _, _, height in sizes}) == 1
    assert all(abs(shown - true) < .05 for shown, true, _ in sizes)


def test_the_site_finds_and_leads_there_and_back(site, offline, screens):
    page = offline(site / "index.html")
    assert page.title() == page.locator("h1").inner_text() == "Scenes, test split"
    assert "entries" in page.locator("#count").inner_text()
    page.locator("#search").fill("RED")
    assert "found" in page.locator("#count").inner_text() and page.locator("#results a").count() > 1
    page.screenshot(path=screens / "site-index.png", full_page=True)
    name = page.locator("#results a").first.get_attribute("href")
    page.locator("#results a").first.click()
    page.locator(f"#{name.partition('#')[2]}").wait_for()
    assert page.url.endswith(name)
    page.locator("nav a").first.click()
    assert page.url.endswith("index.html")


@pytest.mark.parametrize("kind", ["view", "site"])
def test_markup_that_got_in_all_the_same_has_no_effect(five, site, browser, tmp_path, kind):
    "The policy runs no script but the page's own and applies no style but the page's own, whatever the markup holds."
    text = (five if kind == "view" else site / "words.html").read_text(encoding="utf8")
    assert "unsafe-inline" not in text
    injected = ("<script>document.title='broken'</script><style>body{display:none}</style><p id=p style='position:fixed'>p</p>"
                "<img src=x onerror=\"document.title='broken'\"><a href=\"javascript:document.title='broken'\" id=a>a</a>")
    (tmp_path / "page.html").write_text(text.replace("<main>", f"<main>{injected}"), encoding="utf8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("#a").click()
    page.wait_for_timeout(100)
    assert page.title() != "broken" and page.locator("main").is_visible()
    assert page.locator("#p").evaluate("e => getComputedStyle(e).position") == "static"
    context.close()


def test_the_tour_is_a_page_that_answers_offline(toured, offline, screens, tmp_path):
    "Saved by the command that the page on views names."
    page_on_views = nbformat.read(ROOT / "nbs" / "look" / "03_view.ipynb", 4)
    named = next(c.source for c in page_on_views.cells if "jupyter nbconvert" in c.source)
    words = shlex.split(re.search("`jupyter (nbconvert[^`]*)`", named)[1].replace("out.ipynb", str(toured)))
    done = subprocess.run([sys.executable, "-m", *words, "--output-dir", str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    page = offline(tmp_path / "tour.html")
    assert page.locator("h1").inner_text().startswith("Tour")
    frame = page.frame_locator("iframe")
    word = frame.locator(".word").nth(1)
    word.hover()
    assert word.get_attribute("data-active") == "true" and frame.locator(".box[data-active=true]").get_attribute("data-rank") == "1"
    page.screenshot(path=screens / "tour-word.png")
    frame.locator("[role=tab]").nth(1).click()
    assert frame.locator("[role=tab]").nth(1).get_attribute("aria-selected") == "true"
    page.screenshot(path=screens / "tour.png", full_page=True)
