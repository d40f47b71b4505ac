"""Speed and memory of `teran_nb.alignment.similarity` against the field's usual way, in one process, interleaved.

`python benchmarks/similarity.py` prints three tables in markdown (a quarter of an hour on two cores); `--quick` takes seconds and shows only that it runs.

The naive reference keeps what the field's evaluation code keeps: buffers of 37 slots an image (I-CLS first) and 88 a caption ([CLS] first, [SEP] and its
neighbour cut off the end), sliced for every comparison; it expands both to all pairs, multiplies, masks, takes the maximum and the sum; once with one
image against all captions, once with one group of five captions against all images. It is timed on a sample and projected.
Memory is the peak of the resident set over its start, in a fresh process, read from /proc (Linux only).
"""
import argparse, json, statistics, subprocess, sys, time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import machine, rss, unit_sets
from teran_nb.model.similarity import similarity
from teran_nb.core.packed import Packed
from teran_nb.model.losses import triplet

REGIONS, WORDS, GROUP = 37, 88, 5
FLOAT, HALF = torch.float32, torch.bfloat16


# data and the reference


def data(args, images, captions):
    g = torch.Generator().manual_seed(args.seed)
    lengths = torch.randint(args.words[0], args.words[1] + 1, (captions,), generator=g)
    return unit_sets(torch.full((images,), args.regions), args.dim, args.seed + 1), unit_sets(lengths, args.dim, args.seed + 2)

def pad(packed, size):
    "Padded vectors and their mask, `size` slots, of which the first is for the whole."
    values,mask = packed.padded()
    return F.pad(values, (0,0,1,size-1-values.shape[1])), F.pad(mask, (1,size-1-mask.shape[1]))

def naive(regions, region_mask, words, word_mask):
    "Every pair written out: expand, multiply, mask, maximum over regions, sum over words."
    i,c = len(regions),len(words)
    regions,region_mask,words,word_mask = regions[:,1:],region_mask[:,1:],words[:,1:-2],word_mask[:,1:-2]
    a = regions[:,None].expand(-1,c,-1,-1) @ words[None].expand(i,-1,-1,-1).transpose(2,3)
    best = a.masked_fill(~region_mask[:,None,:,None], -torch.inf).max(2)[0]
    return best.masked_fill(~word_mask, 0).sum(-1)


# measuring

def seconds(f, repeats=1):
    start = time.perf_counter()
    for _ in range(repeats): f()
    return (time.perf_counter() - start) / repeats

def gemm_rate(dtype, dim, span):
    "FLOP/s of a plain product: the best of `torch.mm` into memory that is there and of oneDNN's (a 1x1 convolution), large and cache-sized."
    def rate(n, m, way):
        x,y,out = torch.randn(n, dim).to(dtype),torch.randn(m, dim).to(dtype),torch.empty(n, m, dtype=dtype)
        pixels,filters = x[None,None].permute(0,3,1,2),y[:,:,None,None]
        once = {"mm": lambda: torch.mm(x, y.T, out=out), "convolution": lambda: F.conv2d(pixels, filters)}[way]
        return 2 * n * m * dim / seconds(once, max(1, int(span / seconds(once))))
    return max(rate(n, m, way) for n,m in ((4096,4096), (1152,768)) for way in ("mm","convolution"))


def peak(f):
    "Peak resident memory over that at the start, MB, of this process."
    Path("/proc/self/clear_refs").write_text("5")
    before = rss("VmRSS")
    f()
    return rss("VmHWM") - before

def peak_of(args, what):
    "`peak` of one of `JOBS` in a fresh process."
    return float(subprocess.run([sys.executable, __file__, "--job", what, "--arguments", json.dumps(vars(args))], capture_output=True, text=True, check=True).stdout)

def batch(args, n):
    "A training batch: padded leaves that want gradients, as a model gives them."
    images,captions = data(args, n, n)
    padded = pad(images, args.regions + 1),pad(captions, int(captions.lengths.max()) + 3)
    return [(v.requires_grad_(), m) for v,m in padded]

def step(sides, how):
    "Loss and gradients of one batch."
    for v,_ in sides: v.grad = None
    (r,rm),(w,wm) = sides
    sim = naive(r, rm, w, wm) if how == "naive" else similarity(Packed.from_padded(r, rm), Packed.from_padded(w, wm))
    loss = triplet(sim, torch.arange(len(sim)))
    loss.backward()
    return loss.item()

def job(name, args):
    "What `peak_of` measures."
    kind,what = name.split(":")
    if kind == "retrieval":
        images,captions = data(args, args.images, args.captions)
        return peak(lambda: similarity(images, captions, dtype=getattr(torch, what)))
    sides = batch(args, int(kind))
    return peak(lambda: step(sides, what))


# tables

def table(head, rows):
    for r in (head, ["---"] * len(head), *rows): print("| " + " | ".join(map(str, r)) + " |")
    print(flush=True)


def retrieval(args):
    "Table 1: the whole matrix."
    images,captions = data(args, args.images, args.captions)
    (r,rm),(w,wm) = pad(images, REGIONS),pad(captions, WORDS)
    flops = 2 * len(images.values) * len(captions.values) * args.dim
    groups = [slice(GROUP*k, GROUP*(k+1)) for k in range(args.groups)]
    runs = {k: [] for k in ("first","second",FLOAT,HALF,"share float32","share bfloat16")}
    for _ in range(args.rounds):
        runs["first"].append(seconds(lambda: [naive(r[i:i+1], rm[i:i+1], w, wm) for i in range(args.sample)]) / args.sample * len(images))
        runs["second"].append(seconds(lambda: [naive(r, rm, w[g], wm[g]) for g in groups]) / args.groups * len(captions) / GROUP)
        for dtype in (FLOAT,HALF):
            before = gemm_rate(dtype, args.dim, args.span)
            runs[dtype].append(seconds(lambda: similarity(images, captions, dtype=dtype)))
            runs[f"share {str(dtype)[6:]}"].append(2 * flops / runs[dtype][-1] / (before + gemm_rate(dtype, args.dim, args.span)))
    med = {k: statistics.median(v) for k,v in runs.items()}
    sample = torch.cat([naive(r[i:i+1], rm[i:i+1], w, wm) for i in range(args.sample)])
    both = med["first"] + med["second"]
    print(f"## The whole matrix: {args.images:,} images of {args.regions} regions x {args.captions:,} captions of {args.words[0]}-{args.words[1]} words "
          f"({len(captions.values):,} in all), {args.dim} dimensions, pooling mrsw\n\n"
          f"Naive projected from {args.sample} images and {args.groups} groups of {GROUP} captions; medians of {args.rounds} interleaved rounds. "
          f"With its padding the naive way does {len(r)*len(w)*(REGIONS-1)*(WORDS-3)/(len(images.values)*len(captions.values)):.1f} times the multiplications in each direction.\n")
    rows = [["naive, first direction", f"{med['first']:.1f}", "", "", "", "", ""], ["naive, both directions", f"{both:.1f}", "", "", "", "", ""]]
    for dtype in (FLOAT,HALF):
        name = str(dtype)[6:]
        error = (similarity(images[:args.sample], captions, dtype=dtype) - sample).abs()
        rows.append([f"ours, {name}", f"{med[dtype]:.1f}", f"{med['first']/med[dtype]:.1f}", f"{both/med[dtype]:.1f}", f"{med[f'share {name}']:.0%}",
                     f"{peak_of(args, f'retrieval:{name}'):.0f}", f"{error.max():.1e} (of {sample.abs().max():.1f})"])
    table(["", "seconds", "x first", "x both", "of the GEMM rate", "extra memory MB", "largest difference"], rows)
    print("seconds, all rounds:", "; ".join(f"{k} {', '.join(f'{o:.2f}' for o in v)}" for k,v in runs.items()), "\n")

def latency(args):
    "Table 2: one query against a collection."
    images,captions = data(args, args.collection[0], args.collection[1])
    cases = {}
    for dtype in (FLOAT,HALF):
        i,c = images.to(dtype),captions.to(dtype)
        cases[f"one sentence, {len(i):,} images",dtype] = (i, c[:1])
        cases[f"one image, {len(c):,} captions",dtype] = (i[:1], c)
    times = {k: [] for k in cases}
    for _ in range(args.rounds + 1):
        for k,(i,c) in cases.items(): times[k].append(1000 * seconds(lambda: similarity(i, c), 3))
    print("## One query, collection in memory and in the precision named, milliseconds\n")
    names = dict.fromkeys(k for k,_ in cases)
    table(["", "float32", "bfloat16"], [[n] + [f"{statistics.median(times[n,d][1:]):.0f}" for d in (FLOAT,HALF)] for n in names])

def training(args):
    "Table 3: the loss."
    print("## Triplet loss with hardest negatives, forward and backward, float32; both padded to the longest of the batch\n")
    rows = []
    for n in args.batches:
        sides,times = batch(args, n),{"naive": [], "ours": []}
        loss = {how: step(sides, how) for how in times}
        for _ in range(args.rounds):
            for how in times: times[how].append(seconds(lambda: step(sides, how)))
        t = {how: statistics.median(v) for how,v in times.items()}
        m = {how: peak_of(args, f"{n}:{how}") for how in times}
        rows.append([n, f"{1000*t['naive']:.0f}", f"{1000*t['ours']:.0f}", f"{t['naive']/t['ours']:.1f}", f"{m['naive']:.0f}", f"{m['ours']:.0f}",
                     f"{m['naive']/m['ours']:.1f}", f"{abs(loss['ours']-loss['naive'])/loss['naive']:.0e}"])
    table(["batch", "naive ms", "ours ms", "x faster", "naive MB", "ours MB", "x smaller", "loss differs by"], rows)

TABLES = {"retrieval": retrieval, "latency": latency, "training": training}
QUICK = dict(images=48, captions=200, dim=64, sample=2, groups=2, rounds=2, span=.05, collection=[100,500], batches=[8])

def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--images", type=int, default=1000)
    p.add_argument("--captions", type=int, default=5000)
    p.add_argument("--regions", type=int, default=36)
    p.add_argument("--words", type=int, nargs=2, default=[8,25], help="fewest and most in a caption")
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--sample", type=int, default=3, help="images the naive first direction is timed on")
    p.add_argument("--groups", type=int, default=2, help="caption groups the naive second direction is timed on")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--span", type=float, default=1, help="seconds a GEMM rate is measured for")
    p.add_argument("--collection", type=int, nargs=2, default=[5000,25000], help="images and captions one query meets")
    p.add_argument("--batches", type=int, nargs="+", default=[40,128])
    p.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    p.add_argument("--job", help=argparse.SUPPRESS)
    p.add_argument("--arguments", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.quick: vars(args).update(QUICK)
    if args.arguments: vars(args).update(json.loads(args.arguments) | {"job": args.job})
    return args

def main():
    args = arguments()
    if args.job: return print(job(args.job, args))
    print(f"# Similarity\n\n{machine()}; seed {args.seed}\n")
    for name in args.tables: TABLES[name](args)

if __name__ == "__main__": main()
