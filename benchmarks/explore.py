"""How long the explorer takes to answer, with a collection in memory or in an index.

`python benchmarks/explore.py` prints a table in markdown (a minute on two cores); `--quick` takes seconds and shows only that it runs.
`python benchmarks/explore.py --images 100000 --dim 128` is a large collection in memory (6 GB), and the same with `--index` in Qdrant Edge (a quarter of an hour to fill).

Embeddings of pictures and captions are random unit vectors, 36 regions an image; sentences are encoded by a small model of the same width, untrained. An answer is
all that stands between Enter and the page: encoding the sentence, the similarity with every picture, the order, and the HTML of a page of results with its
thumbnails. Each sentence is new; the median and the worst of all are given, and the median of CPU seconds. It should be less than 300 ms.

`--opened INDEX --run RUN` takes the images of an index that `benchmarks/search.py --keep-index FOLDER` left, and the model that encoded them. `--browser` opens the explorer
itself in JupyterLab and headless Chromium. A script in the page takes the time from the key Enter to the frame after the last picture of the results was decoded; the CPU time of all
processes is read until the page is at rest, and again two seconds later, when the explorer has renewed the HTML that stays in the notebook.
"""
import argparse, io, os, shutil, socket, subprocess, sys, tempfile, time, urllib.request
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import psutil
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, unit_sets
from teran_nb.data.captions import Captions
from teran_nb.core.processes import seed_everything
from teran_nb.core.show import markdown_table
from teran_nb.look.explorer import Explorer, static_page
from teran_nb.look.view import Thumbnails
from teran_nb.data.features import Features, FeatureWriter
from teran_nb.data.collection import Collection
from teran_nb.look.finder import Finder
from teran_nb.model.encoded import Encoded
from teran_nb.model.network import Network
from teran_nb.training.recipe import recipe
from teran_nb.training.runs import load_model
from teran_nb.search.index import Index

MOST = 10_000 # Images whose captions are encoded too
WORDS = "a the red blue green small large kite house boat tree dog cat car bird above below beside near two three on in with field lake road sky snow night".split()


def sentences(rng, n):
    "Random words, six to thirteen in a sentence."
    words = rng.choice(WORDS, (n,13)).tolist()
    return [" ".join(row[:length]) for row,length in zip(words, rng.integers(6, 14, n))]

def make_collection(folder, images):
    "Features that nothing reads, and pictures of blurred noise; a folder that is there already stays."
    if (folder/"features").is_dir(): return
    (folder/"pictures").mkdir(parents=True)
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (30,40,3), dtype=np.uint8)
    Image.fromarray(noise).resize((640,480)).save(out, "JPEG", quality=90)
    with FeatureWriter(folder/"features", "noise", dim=4) as w:
        for i in range(images):
            w.add(f"im{i}", np.zeros((36,4)), np.tile([10,20,300,400], (36,1)), (640,480))
            path = folder/"pictures"/f"im{i}.jpg"
            first = folder/"pictures"/f"im{i - i % 50_000}.jpg"
            if path == first: path.write_bytes(out.getvalue())
            else: os.link(first, path) # one file by many names; ext4 allows 65,000 of them

def open_collection(folder):
    "The pictures of `make_collection`, with five sentences each."
    features = Features(folder/"features")
    images = len(features)
    texts = sentences(np.random.default_rng(0), 5*images)
    captions = Captions(texts, np.repeat(np.arange(images), 5), [f"im{i}" for i in range(images)])
    return Collection(features, captions, folder/"pictures")

def explorer(folder, index, run):
    "The explorer as a notebook shows it."
    finder = Finder(load_model(run, "cpu"), open_collection(Path(folder)), encoded={"model": Index(None, index)})
    return Explorer(finder.ask("a red kite above the small house"))

def finder(folder, images, dim, indexed, candidates):
    "A finder whose collection is encoded already, and in an index if so."
    make_collection(folder, images)
    world = open_collection(folder)
    seed_everything(0)
    config = replace(recipe().network, dim=dim)
    model = Network.build(replace(config, regions=replace(config.regions, features=4)), world.captions.texts).eval()
    vectors = Encoded(torch.zeros(images, dim), unit_sets([36]*images, dim, 0), world.image_ids)
    if indexed:
        model.save(folder/"model") # for `--opened`
        index = Index(model, folder/"index")
        index.add(vectors)
        index.candidates = candidates
        vectors = index
    f = Finder(model, world, encoded={"model": vectors})
    if images > MOST: return f
    words = unit_sets([len(t.split()) for t in world.captions.texts], dim, 1)
    f._kept["captions","model"] = Encoded(torch.zeros(5*images, dim), words, world.captions.texts) # instead of encoding them
    return f

def timed(do, n):
    took,cpu = [],[]
    for i in range(n+1):
        start,cpu_start = time.perf_counter(),time.process_time()
        do(i)
        took.append(1000*(time.perf_counter()-start))
        cpu.append(1000*(time.process_time()-cpu_start))
    return np.median(took[1:]),max(took[1:]),np.median(cpu[1:]) # the first is a warm-up

def measure(f, n, by_picture=True):
    "Milliseconds of what a reader does: median, worst, and median of the CPU."
    rng,thumbs = np.random.default_rng(1),Thumbnails(f.whole)
    asked = sentences(rng, n+1)
    def page(do): return lambda i: (do(i),static_page(f, thumbs))
    def word(i): f.word = 1; return f.nearest_regions()
    def at_least(i): f.cosines,f.min_cosine = {},.05; f.page_items("model"); f.min_cosine = 0.
    found = {"a new sentence: encode, search, order": timed(lambda i: f.ask(asked[i]), n), "a new sentence, to its page": timed(page(lambda i: f.ask(asked[-i-1]+" kite")), n)}
    f.ask(asked[0])
    found |= {"one word changed, to its page": timed(page(lambda i: f.edit(1, WORDS[i % len(WORDS)])), n), "who else shows this word": timed(word, n),
              "filter by cosine": timed(at_least, n)}
    if by_picture and len(f.collection) <= MOST: found["a picture: search all captions"] = timed(f.ask_by_picture, n)
    return found


def laboratory(folder):
    "JupyterLab in a folder, without a token; its process and address."
    settings = folder/".settings"/"@jupyterlab"/"apputils-extension"/"notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT/'benchmarks'}", "JUPYTER_CONFIG_DIR": str(folder/".config"), "JUPYTER_RUNTIME_DIR": str(folder/".runtime")}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip", "127.0.0.1", "--port", str(port), "--ServerApp.token=",
               "--ServerApp.password=", f"--LabApp.user_settings_dir={folder/'.settings'}", f"--ServerApp.root_dir={folder}"]
    server = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    while server.poll() is None:
        try: urllib.request.urlopen(f"{address}/api", timeout=2).close()
        except OSError: time.sleep(.5)
        else: return server,address
    raise RuntimeError("JupyterLab ended early")

WATCH = """() => {
  const root = document.querySelector('.teran-root'), state = window.measured = {}
  let waiting = false
  async function picturesShown() {
    waiting = false
    await Promise.all([...root.querySelectorAll('.teran-card img')].map(e => e.decode().catch(() => null)))
    requestAnimationFrame(() => setTimeout(() => state.shown = performance.now()))
  }
  root.addEventListener('keydown', e => { if (e.key === 'Enter') state.asked = performance.now() }, true)
  const watch = new MutationObserver(() => { if (!waiting) requestAnimationFrame(picturesShown); waiting = true })
  for (const card of root.querySelectorAll('.teran-card')) watch.observe(card, {childList: true, subtree: true})
}"""
ITEMS = "[...document.querySelectorAll('.teran-root figure[data-rank]')].map(e => e.dataset.item).join()"
ANSWERED = "document.querySelector('.teran-root [role=status]')?.textContent.includes('answered in')"
BEGUN = "[...document.querySelectorAll('.jp-InputPrompt')].some(e => /[*\\d]/.test(e.textContent))"

def cpu_ms(server):
    "CPU milliseconds until now of JupyterLab with its kernel, and of the browser."
    def used(processes): return sum(sum(p.cpu_times()[:2]) for p in processes)
    jupyter = [psutil.Process(server.pid),*psutil.Process(server.pid).children(recursive=True)]
    browser = set(psutil.Process().children(recursive=True)) - set(jupyter)
    return 1000*np.array([used(jupyter),used(browser)])

def in_browser(world, index, run, n, screenshot):
    "Milliseconds from Enter to the results with their pictures, what the explorer itself says it took, and CPU milliseconds: median and worst of each."
    from playwright.sync_api import Error, sync_playwright
    rng,took,answered,cpu,after = np.random.default_rng(1),[],[],[],[]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        folder = Path(folder)
        code = f"from explore import explorer\nexplorer({str(Path(world).resolve())!r}, {str(Path(index).resolve())!r}, {str(Path(run).resolve()) if Path(run).exists() else run!r})"
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)], metadata=kernel), folder/"page.ipynb")
        server,address = laboratory(folder)
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox","--disable-gpu"])
        try:
            page = browser.new_context(viewport={"width": 1280, "height": 1300}).new_page()
            page.goto(f"{address}/lab/tree/page.ipynb")
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=240_000)
            for _ in range(5): # what is run while the kernel is still being connected is lost
                page.get_by_text("Run", exact=True).first.click()
                page.get_by_text("Run All Cells", exact=True).click()
                try: page.wait_for_function(BEGUN, timeout=20_000)
                except Error: continue
                break
            page.locator(".teran-root figure[data-rank='0']").first.wait_for(timeout=600_000)
            page.evaluate(WATCH)
            search = page.locator(".teran-root").get_by_label("Search")
            for new in sentences(rng, n + 1):
                before = page.evaluate(ITEMS)
                search.fill(new)
                page.wait_for_timeout(500)
                at_rest = cpu_ms(server)
                search.press("Enter")
                page.wait_for_function(f"before => {ANSWERED} && {ITEMS} != before && measured.shown > measured.asked", arg=before, polling=100, timeout=120_000)
                page.wait_for_timeout(500)
                cpu.append(cpu_ms(server) - at_rest)
                took.append(page.evaluate("measured.shown - measured.asked"))
                answered.append(float(page.get_by_text("answered in").first.text_content().split("answered in")[1].split()[0]))
                page.wait_for_timeout(2000)
                after.append(cpu_ms(server) - at_rest - cpu[-1])
            if screenshot: page.screenshot(path=screenshot)
        finally:
            browser.close()
            server.terminate()
            server.wait()
    columns = {"from Enter to the results with their pictures": took, "of it: encode, search, order": answered,
               "CPU of JupyterLab and its kernel": [kernel for kernel,_ in cpu], "CPU of the browser": [browser for _,browser in cpu],
               "CPU of JupyterLab and its kernel, afterwards": [kernel for kernel,_ in after], "CPU of the browser, afterwards": [browser for _,browser in after]}
    rows = [(name,np.median(v[1:]),max(v[1:])) for name,v in columns.items()] # the first is a warm-up
    return [[name, f"{median:.0f}", f"{worst:.0f}"] for name,median,worst in rows]

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--images", type=int, nargs="+", default=[1000])
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--sentences", type=int, default=20)
    p.add_argument("--index", action="store_true", help="images in Qdrant Edge")
    p.add_argument("--candidates", type=int, default=0, help="of the index, as of a larger one")
    p.add_argument("--world", default="", help="folder in which the pictures stay, and with `--index` the model and the index")
    p.add_argument("--opened", default="", help="folder of an index that is there already")
    p.add_argument("--run", default="runs/scenes-teran-mrsw", help="the model of that index, as of `load_model`")
    p.add_argument("--browser", action="store_true", help="the explorer in JupyterLab and Chromium, over `--opened`")
    p.add_argument("--screenshot", default="", help="picture file of the page after the last sentence, with `--browser`")
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    if args.quick: args.images,args.dim,args.sentences = [100],64,3
    if args.opened: # the pictures are made before JupyterLab starts, so that it only opens them
        world = Path(args.world or tempfile.mkdtemp())
        make_collection(world, len(Index(None, args.opened)))
    if args.browser:
        print(f"{machine()}; JupyterLab and Chromium, {args.opened}\n", flush=True)
        rows = in_browser(world, args.opened, args.run, args.sentences, args.screenshot)
        return print(markdown_table(["milliseconds","median","worst"], rows))
    print(f"{machine()}; {args.opened or f'{args.dim} dimensions, 36 regions an image'}, five captions an image\n")
    found = {}
    if args.opened:
        args.images = []
        index = Index(None, args.opened)
        opened = Finder(load_model(args.run, "cpu"), open_collection(world), encoded={"model": index})
        found[len(index)] = measure(opened, args.sentences, False)
    for n in args.images:
        folder = Path(args.world or tempfile.mkdtemp())
        found[n] = measure(finder(folder, n, args.dim, args.index, args.candidates), args.sentences)
        if not args.world: shutil.rmtree(folder)
    rows = [[k, *(f"{v:.0f}" for s in found.values() for v in s[k])] for k in next(iter(found.values()))]
    heads = ["milliseconds"]
    for n in found: heads += [f"{n:,} images, median","worst","CPU, median"]
    print(markdown_table(heads, rows))

if __name__ == "__main__": main()
