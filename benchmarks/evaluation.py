"""Time of a whole evaluation of given embeddings, part by part, in one process.

`python benchmarks/evaluation.py` prints a table in markdown for Flickr30k's and COCO's sizes (1,000 images x 5,000 captions in under a minute, 5,000 x 25,000 in a
quarter of an hour on two cores); `--quick` takes seconds and shows only that it runs; `--dtype bfloat16` halves the similarity's time.

Captions are those of COCO's test split, from ../shared; where they are missing, those of the drawn scenes, repeated. Embeddings are random unit vectors, 36 regions
an image and as many word vectors as the caption has words. SPICE, which is read from a file, is stood in for by a second relevance of random numbers.
"""
import argparse, sys, tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, timed, unit_sets
from teran_nb.model.similarity import similarity
from teran_nb.data.caption_files import read_captions
from teran_nb.data.captions import Captions
from teran_nb.core.show import markdown_table
from teran_nb.measure.retrieval import PROTOCOLS, Protocol, ndcg_at_k, ranking, ranks, retrieval
from teran_nb.measure.relevance import Relevance, rouge_l
from teran_nb.scenes.scenes import scene_collection

COCO = ROOT.parent/"shared"/"data"/"captions"/"coco_testall_caps.txt.gz"


def captions(images):
    "Five captions an image, and what they are called."
    if COCO.is_file(): return read_captions(COCO, per_image=5).select(range(images)),"COCO test"
    texts = scene_collection().test.captions.texts
    return Captions([texts[i % len(texts)] for i in range(5*images)], np.repeat(np.arange(images), 5), [str(i) for i in range(images)]),"scenes, test (../shared is not here)"


def parts(images, args, folder):
    "Seconds of every part of an evaluation of so many images."
    caps,_ = captions(images)
    r = unit_sets(torch.full((images,), 36), args.dim, 0)
    w = unit_sets(torch.tensor([len(t.split()) for t in caps.texts]), args.dim, 1)
    s = {}
    s["similarity"],sim = timed(lambda: similarity(r, w, dtype=getattr(torch, args.dtype), show_progress_bar=True))
    s["ROUGE-L of all pairs, once for a split"],rouge = timed(lambda: rouge_l(caps, folder))
    spice = Relevance("spice", np.random.default_rng(0).random(sim.T.shape, dtype=np.float32))
    s["ranks, both directions"],_ = timed(lambda: ranks(sim, caps.image_of))
    s["first 25, both directions"],first = timed(lambda: {"t2i": ranking(sim.T, 25), "i2t": ranking(sim, 25)})
    s["NDCG of both relevances"],_ = timed(lambda: [ndcg_at_k(x, o, d) for d,x in first.items() for o in (rouge,spice)])
    fresh = [Relevance(o.name, o.values) for o in (rouge,spice)]
    s["all metrics together"],_ = timed(lambda: retrieval(sim, caps.image_of, Protocol("all"), fresh))
    if images == 5000: s["the same in five folds (COCO 1K)"],_ = timed(lambda: retrieval(sim, caps.image_of, PROTOCOLS["COCO 1K"], fresh))
    return s


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--images", type=int, nargs="+", default=[1000,5000])
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--dtype", default="float32", choices=("float32","bfloat16"))
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    if args.quick: args.images,args.dim = [200],64
    print(f"{machine()}; captions: {captions(1)[1]}; {args.dim} dimensions, {args.dtype}\n")
    with tempfile.TemporaryDirectory() as folder: found = {n: parts(n, args, folder) for n in args.images}
    names = list(dict.fromkeys(k for s in found.values() for k in s))
    rows = [[k, *(f"{s[k]:.2f}" if k in s else "-" for s in found.values())] for k in names]
    rows.append(["metrics / similarity", *(f"{s['all metrics together']/s['similarity']:.3f}" for s in found.values())])
    print(markdown_table(["seconds", *(f"{n:,} x {5*n:,}" for n in found)], rows))

if __name__ == "__main__": main()
