"""How long the explorer takes to answer, with a collection in memory.

`python benchmarks/explore.py` prints a table in markdown (a minute on two cores); `--quick` takes seconds and shows only that it runs.

Embeddings of pictures and captions are random unit vectors, 36 regions an image; sentences are encoded by a small model of the same width, untrained. An answer is
all that stands between Enter and the page: encoding the sentence, the similarity with every picture, the order, and the HTML of a page of results with its
thumbnails. Each sentence is new; the median and the worst of all are given. At 1,000 images on two cores it should be less than 300 ms.
"""
import argparse, io, sys, tempfile, time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, unit_sets
from teran_nb.data.captions import Captions
from teran_nb.core.config import seed_everything
from teran_nb.core.display import markdown_table
from teran_nb.look.explore import Thumbnails, still
from teran_nb.data.features import FeatureWriter, Features
from teran_nb.data.collection import Collection
from teran_nb.look.finder import Finder
from teran_nb.model.encoder import Encoded
from teran_nb.model.matcher import make_matcher
from teran_nb.experiment.presets import PRESETS

WORDS = "a the red blue green small large kite house boat tree dog cat car bird above below beside near two three on in with field lake road sky snow night".split()


def sentence(rng): return " ".join(rng.choice(WORDS, rng.integers(6, 14)))

def collection(folder, images):
    "Images with features that nobody reads, and pictures of blurred noise."
    rng,ids = np.random.default_rng(0),[f"im{i}" for i in range(images)]
    (folder/"pictures").mkdir(parents=True)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (30,40,3), dtype=np.uint8)).resize((640,480)).save(out, "JPEG", quality=90)
    with FeatureWriter(folder/"features", "noise", dim=4) as w:
        for k in ids:
            w.add(k, np.zeros((36,4)), np.tile([10,20,300,400], (36,1)), (640,480))
            (folder/"pictures"/f"{k}.jpg").write_bytes(out.getvalue())
    return Collection(Features(folder/"features"), Captions([sentence(rng) for _ in range(5*images)], np.repeat(np.arange(images), 5), ids), folder/"pictures")


def finder(folder, images, dim):
    "A finder whose collection is encoded already."
    world = collection(folder, images)
    seed_everything(0)
    config = replace(PRESETS["scenes"].network, dim=dim)
    model = make_matcher(replace(config, regions=replace(config.regions, features=4)), world.captions.texts).eval()
    vectors = Encoded(torch.zeros(images, dim), unit_sets([36]*images, dim, 0), world.image_ids)
    f = Finder(model, world, encoded={"model": vectors})
    words = unit_sets([len(t.split()) for t in world.captions.texts], dim, 1)
    f.encoded_splits["model"].captions = Encoded(torch.zeros(5*images, dim), words, world.captions.texts) # instead of encoding them
    return f

def timed(do, n):
    took = []
    for i in range(n+1):
        start = time.perf_counter()
        do(i)
        took.append(1000*(time.perf_counter()-start))
    return np.median(took[1:]),max(took[1:]) # the first is a warm-up

def measure(f, n):
    "Milliseconds of what a reader does: median and worst."
    rng,thumbs = np.random.default_rng(1),Thumbnails()
    asked = [sentence(rng) for _ in range(n+1)]
    def page(do): return lambda i: (do(i),still(f, thumbs))
    def word(i): f.word = 1; return f.nearest_regions(1)
    def at_least(i): f.min_cosine = .05; f.page_items(); f.min_cosine = 0.
    found = {"a new sentence: encode, search, order": timed(lambda i: f.ask(asked[i]), n), "a new sentence, to its page": timed(page(lambda i: f.ask(asked[-i-1]+" kite")), n)}
    f.ask(asked[0])
    found |= {"one word changed, to its page": timed(page(lambda i: f.edit(1, WORDS[i % len(WORDS)])), n), "who else shows this word": timed(word, n),
              "filter by cosine": timed(at_least, n), "a picture: search all captions": timed(f.ask_by_picture, n)}
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--images", type=int, nargs="+", default=[1000])
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--sentences", type=int, default=20)
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    if args.quick: args.images,args.dim,args.sentences = [100],64,3
    print(f"{machine()}; {args.dim} dimensions, 36 regions an image, five captions an image\n")
    found = {}
    for n in args.images:
        with tempfile.TemporaryDirectory() as folder: found[n] = measure(finder(Path(folder)/"world", n, args.dim), args.sentences)
    rows = [[k, *(f"{v:.0f}" for s in found.values() for v in s[k])] for k in next(iter(found.values()))]
    print(markdown_table(["milliseconds", *(h for n in found for h in (f"{n:,} images, median", "worst"))], rows))

if __name__ == "__main__": main()
