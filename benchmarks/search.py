"""Speed, agreement and size of `teran_nb.search.index`: two stages against the exact similarity of every pair, in one process, interleaved.

`python benchmarks/search.py` prints two tables in markdown (some minutes on two cores, most of them building the index); `--quick` takes seconds and shows only that it runs.

The vectors are synthetic, and clustered as those of trained models are: a region is one of 3,000 latent directions (some common, most rare; eight of them in
an image) plus noise, of cosine 0.6 with its direction; a sentence is made of 8 to 14 regions of one image plus noise, of cosine 0.5 with the region. That is a
little harder to file than photographs of Flickr8k as a TERAN of ours encodes them. Times are medians over sentences asked one at a time; the index's files are
in the page cache, so no disk is timed. Recall is against the exact answer: how often the first is the same, how many of the ten best are found. A trained run's
own vectors (`--run`, and the data it is asked about) give the second table.
"""
import argparse, statistics, sys, tempfile, warnings
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, rss, timed
from teran_nb.model.similarity import similarity
from teran_nb.core.packed import Packed
from teran_nb.core.display import markdown_table
from teran_nb.experiment.metrics import ranking
from teran_nb.model.encoder import Encoded
from teran_nb.experiment.runs import load_model
from teran_nb.experiment.datasets import load_data
from teran_nb.search.index import build_index


# data

def near(x, cosine, g):
    "Unit vectors of about that cosine with those of `x`."
    noise = F.normalize(torch.randn(x.shape, generator=g), dim=-1)
    return F.normalize(cosine*x + (1 - cosine**2)**.5*noise, dim=-1)

def blocks(args, size=1000):
    "The images, some at a time."
    g = torch.Generator().manual_seed(args.seed)
    latent = F.normalize(torch.randn(args.latent, args.dim, generator=g), dim=1)
    often = 1/torch.arange(1, args.latent + 1)**.7
    for i in range(0, args.images, size):
        n = min(size, args.images - i)
        topics = torch.multinomial(often.expand(n, -1), 8, generator=g)
        regions = near(latent[topics.gather(1, torch.randint(8, (n,args.regions), generator=g))], .6, g)
        whole = F.normalize(regions.mean(1), dim=1)
        yield Encoded(whole, Packed(regions.flatten(0, 1), torch.arange(n + 1)*args.regions), [f"image {i+j}" for j in range(n)])

def sentences(index, args):
    "Each near some regions of one image."
    g = torch.Generator().manual_seed(args.seed + 1)
    def one():
        regions = index.parts[int(torch.randint(len(index), (1,), generator=g))]
        return near(regions[torch.randint(len(regions), (int(torch.randint(8, 15, (1,), generator=g)),), generator=g)], .5, g)
    return Packed.from_sets([one() for _ in range(args.sentences)])


# measuring

def measure(index, captions, args):
    "A row for each way: milliseconds, times faster, recall."
    images = index.parts[:] if 4*index.parts.values.numel() < 1e9*args.memory else None
    ways = {"exact, vectors on disk": lambda c: index.search(c, 10, exact=True).rows[0]}
    if images is not None: ways["exact, float32 in memory"] = lambda c: ranking(similarity(images, c, index.pooling).T, 10)[0]
    for n in (n for n in args.candidates if n < len(index)): ways[f"two stages, {n:,} candidates"] = lambda c, n=n: index.search(c, 10, n).rows[0]
    took,found = {k: [] for k in ways},{k: [] for k in ways}
    for i in [0,*range(len(captions))]: # the first is a warm-up
        for k,way in ways.items():
            seconds,rows = timed(lambda: way(captions[i:i+1]))
            took[k].append(1000*seconds); found[k].append(rows)
    median,exact = {k: statistics.median(v[1:]) for k,v in took.items()},torch.stack(found["exact, vectors on disk"][1:])
    def row(k):
        got = torch.stack(found[k][1:])
        first,ten = (got[:,0] == exact[:,0]).float().mean(),(exact[:,:,None] == got[:,None]).any(2).float().mean()
        return [k, f"{median[k]:.1f}", f"{median['exact, vectors on disk']/median[k]:.1f}", f"{100*first:.1f}", f"{100*ten:.1f}"]
    print(markdown_table(["","ms a sentence","times faster","R@1 %","R@10 %"], [row(k) for k in ways]) + "\n", flush=True)

def sizes(index):
    "What lies on the disk."
    mb = {p.stem: p.stat().st_size/1e6 for p in index.folder.iterdir()}
    return f"on the disk {mb['values']:,.0f} MB of vectors ({index.parts.values.dtype}), {sum(mb.values()) - mb['values']:,.0f} MB beside them (codes {mb['codes']:,.1f}, centroids {mb['centroids']:,.1f}, one vector an image {mb['whole']:,.1f})"

def synthetic(args, folder):
    start = rss("VmHWM")
    seconds,index = timed(lambda: build_index(folder/"synthetic", blocks(args), total=args.images))
    built = rss("VmHWM")
    before = rss("RssAnon")
    index.search(sentences(index, args)[:1], 10)
    print(f"## {len(index):,} images, {len(index.codes):,} regions of {index.dim} numbers, {len(index.centroids):,} centroids\n\nBuilt in {seconds:,.0f} s, with at most {built - start:,.0f} MB more resident memory; {sizes(index)}; "
          f"after a search by two stages {max(0, rss('RssAnon') - before):,.0f} MB more memory of its own.\n")
    measure(index, sentences(index, args), args)

def real(args, folder):
    "The vectors of a trained run."
    if not args.run: return print(f"No trained run in {ROOT/'runs'}: no real vectors were measured; name one by --run.")
    model,data = load_model(args.run),load_data(args.data).part(args.split)
    index = build_index(folder/"real", [model.encode_images(data)], pooling=model.pooling)
    texts = data.captions.texts[::max(1, len(data.captions)//args.sentences)][:args.sentences]
    print(f"## {Path(args.run).name}: {len(index):,} images of {Path(args.data).name} ({args.split}), {len(index.codes):,} regions of {index.dim} numbers, {len(index.centroids):,} centroids, {len(texts)} of their captions\n")
    measure(index, model.encode_captions(texts).parts, args)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--images", type=int, default=20_000)
    p.add_argument("--regions", type=int, default=36)
    p.add_argument("--dim", type=int, default=256)
    p.add_argument("--latent", type=int, default=3000, help="latent directions")
    p.add_argument("--sentences", type=int, default=30)
    p.add_argument("--candidates", type=int, nargs="+", default=[100,300,1000,3000])
    p.add_argument("--memory", type=float, default=4, help="GB that vectors may take to be compared in memory too")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--run", default=str(next(iter(sorted((ROOT/"runs").glob("scenes-teran*"))), "")), help="a trained run; one of scenes where there is any")
    p.add_argument("--data", default="scenes", help="what it is asked about: scenes, or a collection's folder")
    p.add_argument("--split", default="all")
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = p.parse_args()
    if args.quick: vars(args).update(images=300, dim=32, latent=40, sentences=4, candidates=[10,100], run="")
    return args

def main():
    args = arguments()
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    print(f"# Search\n\n{machine()}; seed {args.seed}; {args.sentences} sentences\n")
    with tempfile.TemporaryDirectory() as folder:
        synthetic(args, Path(folder))
        real(args, Path(folder))

if __name__ == "__main__": main()
