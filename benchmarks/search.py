"""Recall, time and size of `teran_nb.search`: exact in memory against Qdrant Edge in two and three stages, in one process, interleaved.

`python benchmarks/search.py --collection FOLDER --run RUN` encodes the scenes of a collection (`teran_nb.data.scenes.draw_world` draws one of any size) by a trained
model and prints tables in markdown; without a collection the vectors are synthetic, and clustered as those of trained models are: a region is one of `--latent`
directions (some common, most rare; eight of them in an image) plus noise, of cosine 0.6 with its direction; a sentence is made of 8 to 14 regions of one image plus noise.

Recall is against the exact answer over the stored vectors: how often the first is the same, how many of the ten best are found. Times are of one call of
`Index.search` with one sentence that is encoded already, with the vectors of its ten answers; the index's files are in the page cache, so no disk is timed.
A table shows how the candidates that find 90, 95 and 99 % of the exact ten grow with the collection: the rank of each of the ten in the first stage.
The last table shows what happens when images of another kind are added: all regions turned by one random rotation, for which the centroids were not learned.
"""
import argparse, sys, tempfile, time, warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, rss
from teran_nb.core.display import markdown_table
from teran_nb.core.packed import Packed
from teran_nb.data.collection import Collection
from teran_nb.experiment.runs import load_model
from teran_nb.model.encoder import Encoded, encoded_images
from teran_nb.model.similarity import similarity
from teran_nb.search.centroids import centroid_count, learn_centroids, nearest
from teran_nb.search.index import Index, IndexConfig


# data

def near(x, cosine, g):
    "Unit vectors of about that cosine with those of `x`."
    noise = F.normalize(torch.randn(x.shape, generator=g), dim=-1)
    return F.normalize(cosine*x + (1 - cosine**2)**.5*noise, dim=-1)

def synthetic(args):
    "Images and sentences that nobody drew."
    g = torch.Generator().manual_seed(args.seed)
    latent = F.normalize(torch.randn(args.latent, args.dim, generator=g), dim=1)
    often = 1/torch.arange(1, args.latent + 1)**.7
    topics = torch.multinomial(often.expand(args.images, -1), 8, generator=g)
    regions = near(latent[topics.gather(1, torch.randint(8, (args.images,args.regions), generator=g))], .6, g)
    images = Packed(regions.flatten(0, 1), torch.arange(args.images + 1)*args.regions)
    def one():
        own = regions[int(torch.randint(args.images, (1,), generator=g))]
        return near(own[torch.randint(args.regions, (int(torch.randint(8, 15, (1,), generator=g)),), generator=g)], .5, g)
    return images,Packed.from_sets([one() for _ in range(args.sentences)])

def scenes(args):
    "A collection and its captions as a trained model encodes them."
    model,collection = load_model(args.run),Collection.open(args.collection)
    images = encoded_images(model, collection, args.keep)
    rows = np.linspace(0, len(collection.captions.texts) - 1, args.sentences).astype(int)
    captions = model.encode_captions([collection.captions.texts[i] for i in rows])
    return images.parts[:args.images],captions.parts

def as_encoded(parts, name="im"): return Encoded(torch.zeros(len(parts), 1), parts, [f"{name}{i}" for i in range(len(parts))])


# measuring

def exact_names(images, sentences, k=10):
    "The ten best of each sentence over half-precision vectors."
    stored = Packed(F.normalize(images.values.half().float(), dim=1), images.offsets)
    best = [similarity(stored, sentences[i:i+50]).topk(k, 0).indices.T for i in range(0, len(sentences), 50)]
    return [[f"im{i}" for i in row] for row in torch.cat(best).tolist()]

def build(folder, images, config, batch=512):
    "An index, the seconds it took, and more memory of its own than before, MB."
    before,start = rss("RssAnon"),time.perf_counter()
    index = Index.open(folder, config=config)
    index.add(as_encoded(images), batch=batch)
    index.optimize()
    return index,time.perf_counter() - start,rss("RssAnon") - before

def ask(index, sentences, candidates):
    "Names, wall and CPU milliseconds of each sentence."
    names,wall,cpu = [],[],[]
    for i in range(len(sentences)):
        start,cpu_start = time.perf_counter(),time.process_time()
        found = index.search(sentences[i:i+1], 10, candidates=candidates)
        wall.append(1000*(time.perf_counter() - start))
        cpu.append(1000*(time.process_time() - cpu_start))
        names.append(found.names[0])
    return names,wall,cpu

def recalls(names, exact):
    "Percent of first places, and of the ten best."
    first = np.mean([a[0] == b[0] for a,b in zip(names, exact)])
    ten = np.mean([len(set(a) & set(b))/len(b) for a,b in zip(names, exact)])
    return [f"{100*first:.1f}", f"{100*ten:.1f}"]

def row(what, names, wall, cpu, exact):
    return [what, *recalls(names, exact), f"{np.median(cpu):.1f}", f"{np.percentile(cpu, 95):.1f}", f"{np.median(wall):.1f}", f"{np.percentile(wall, 95):.1f}"]

HEADER = ["","R@1 %","R@10 %","CPU ms","95 %","wall ms","95 %"]

def measure(images, sentences, args, folder):
    exact = exact_names(images, sentences)
    memory = Index()
    memory.add(as_encoded(images))
    memory.search(sentences[:1], 10)
    few = sentences[:max(2, len(sentences)//10)]
    rows = [row("exact, in memory", *ask(memory, few, 0), exact)]
    size = f"exact {memory.home.bytes()/len(images):,.0f} bytes an image (float32)"
    del memory
    for name,pooled in (("two stages",0),("three stages",12)):
        index,seconds,own = build(folder/name, images, IndexConfig(centroids=args.centroids, pooled=pooled))
        ask(index, sentences[:5], 1000) # a warm-up
        for n in args.candidates:
            if n < len(images): rows.append(row(f"{name}, {n:,} candidates", *ask(index, sentences, n), exact))
        size += (f"; {name} {index.home.bytes()/len(images):,.0f} bytes an image on disk, built in {seconds:,.0f} s ({len(index.home.centroids):,} centroids), "
                 f"{own:,.0f} MB of memory after building, {rss('RssAnon'):,.0f} of the process, and {rss('RssFile'):,.0f} MB of mapped files")
        index.close()
    print(markdown_table(HEADER, rows) + f"\n\n{size}; peak of the process {rss('VmHWM'):,.0f} MB.\n", flush=True)

def growth(images, sentences, args):
    "Candidates needed for a share of the exact ten, at several sizes, and the power with which they grow."
    stored = Packed(F.normalize(images.values.half().float(), dim=1), images.offsets)
    rows,needed,shares = [],[],(90,95,99)
    sizes = [n for n in (len(images)//8, len(images)//4, len(images)//2, len(images)) if n > 20]
    for n in sizes:
        few = stored[:n]
        centroids = learn_centroids(few.values[torch.randperm(len(few.values), generator=torch.Generator().manual_seed(args.seed))[:2**16]],
                                    args.centroids or centroid_count(len(few.values)))
        codes,owner = nearest(few.values, centroids)[0],np.repeat(np.arange(n), few.lengths.numpy())
        pairs = np.unique(np.stack([owner,codes]), axis=1)
        exact = similarity(few, sentences).topk(10, 0).indices.T.numpy()
        ranks = []
        for i in range(len(sentences)):
            weights,q = np.zeros(len(centroids)),centroids.of_sentence(sentences[i])
            weights[q.indices] = q.values
            score = np.bincount(pairs[0], weights[pairs[1]], n)
            order = np.argsort(-score, kind="stable")
            rank = np.empty(n, int)
            rank[order] = np.arange(1, n + 1)
            ranks += rank[exact[i]].tolist()
        needed.append(np.percentile(ranks, shares))
        rows.append([f"{n:,}", f"{len(centroids):,}", *[f"{v:,.0f}" for v in needed[-1]]])
    powers = [np.polyfit(np.log(sizes), np.log(v), 1)[0] for v in np.array(needed).T] if len(sizes) > 1 else [0]*3
    rows.append(["grows with the power","", *[f"{v:.2f}" for v in powers]])
    print(markdown_table(["images","centroids",*[f"candidates for {s} %" for s in shares]], rows) + "\n", flush=True)

def strangers(images, sentences, args, folder):
    "Recall before and after images of another kind are added, and after a rebuild."
    half = len(images)//2
    turn = torch.linalg.qr(torch.randn(images.dim, images.dim, generator=torch.Generator().manual_seed(args.seed)))[0]
    index = Index.open(folder/"strangers", config=IndexConfig(centroids=args.centroids))
    index.add(as_encoded(images[:half]), batch=512)
    own,rows = images[half:],[]
    turned = Packed(own.values @ turn, own.offsets)
    asked = Packed(sentences.values @ turn, sentences.offsets)
    every = Packed.cat([images[:half],turned])
    def measured(what, parts, query):
        exact = exact_names(parts, query)
        names,wall,cpu = ask(index, query, 1000)
        rows.append([what, f"{index.strangeness:.2f}", *recalls(names, exact), f"{np.median(cpu):.1f}"])
    measured("images of one kind, their sentences", images[:half], sentences)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index.add(as_encoded(every), batch=512) # the first half is there already
    measured("another kind added, sentences of the first kind", every, sentences)
    measured("another kind added, sentences of that kind", every, asked)
    start = time.perf_counter()
    index.rebuild(args.centroids)
    seconds = time.perf_counter() - start
    measured("after rebuild, sentences of the first kind", every, sentences)
    measured("after rebuild, sentences of the added kind", every, asked)
    print(markdown_table(["1,000 candidates","distance ratio","R@1 %","R@10 %","CPU ms"], rows) + f"\n\nRebuilt in {seconds:,.0f} s.\n", flush=True)
    index.close()


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--collection", default="", help="folder of a drawn collection; synthetic vectors without")
    p.add_argument("--run", default="runs/scenes-teran-mrsw", help="the trained run that encodes it")
    p.add_argument("--keep", default="runs/benchmark-vectors", help="folder where encoded images are kept")
    p.add_argument("--images", type=int, default=10_000)
    p.add_argument("--regions", type=int, default=36)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--latent", type=int, default=3000, help="latent directions of synthetic images")
    p.add_argument("--sentences", type=int, default=200)
    p.add_argument("--centroids", type=int, default=0, help="as of IndexConfig")
    p.add_argument("--candidates", type=int, nargs="+", default=[100,300,1000,3000])
    p.add_argument("--parts", nargs="+", default=["measure","growth","strangers"])
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = p.parse_args()
    if args.quick: vars(args).update(images=300, dim=32, latent=40, sentences=6, candidates=[10,100], collection="")
    return args

def main():
    args = arguments()
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    images,sentences = scenes(args) if args.collection else synthetic(args)
    what = f"scenes of {Path(args.collection).name}, encoded by {Path(args.run).name}" if args.collection else "synthetic vectors"
    print(f"# Search\n\n{machine()}; seed {args.seed}\n\n{len(images):,} images, {what}, {len(images.values)/len(images):.1f} regions of {images.dim} numbers each; "
          f"{len(sentences)} sentences of {sentences.lengths.float().mean():.1f} words\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if "measure" in args.parts: measure(images, sentences, args, Path(folder))
        if "growth" in args.parts: growth(images, sentences, args)
        if "strangers" in args.parts: strangers(images, sentences, args, Path(folder))

if __name__ == "__main__": main()
