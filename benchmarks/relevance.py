"""Speed and memory of `teran_nb.relevance.rouge_l` against the plain Python loop, in one process, interleaved.

`python benchmarks/relevance.py` prints a table in markdown (under a minute on two cores); `--quick` takes seconds and shows only that it runs.

Captions are those of COCO's test split, from ../shared; where they are missing, those of the drawn scenes. The naive reference is the dynamic programming
that the field's evaluation code runs for each caption and reference, here on words that are already split; it is timed on a random sample and given per pair
(one caption, one reference). Ours includes everything: fingerprint, words to characters, scores, the file of the result. Every sampled score must be equal.
Memory is the peak of the resident set over its start, in a fresh process, read from /proc (Linux only).
"""
import argparse, json, random, statistics, subprocess, sys, tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, rss, timed
from teran_nb.data.captions import read_captions
from teran_nb.core.display import markdown_table
from teran_nb.experiment.relevance import rouge_l
from teran_nb.data.scenes import scenes

COCO = ROOT.parent/"shared"/"data"/"captions"/"coco_testall_caps.txt.gz"


# data and the reference

def data(args):
    "Captions, and what they are called."
    full,what = (read_captions(COCO, per_image=5),"COCO test") if COCO.is_file() else (scenes("test").captions,"scenes, test (../shared is not here)")
    return (full if args.images is None else full.select(range(min(args.images, len(full.image_ids))))),what

def lcs(a, b):
    "Length of the longest common subsequence, by the whole table."
    lengths = [[0]*(len(b)+1) for _ in range(len(a)+1)]
    for j in range(1, len(b)+1):
        for i in range(1, len(a)+1):
            if a[i-1] == b[j-1]: lengths[i][j] = lengths[i-1][j-1] + 1
            else: lengths[i][j] = max(lengths[i-1][j], lengths[i][j-1])
    return lengths[len(a)][len(b)]

def naive(candidate, references, beta=1.2):
    "ROUGE-L of one caption with one image's captions, all as lists of words."
    common = [lcs(candidate, r) for r in references]
    p,r = max(n/len(candidate) for n in common),max(n/len(r) for n,r in zip(common, references))
    return (1+beta**2)*p*r/(r+beta**2*p) if p and r else 0.


# measuring


def peak(captions, workers):
    "Peak resident memory over that at the start, MB, of this process."
    Path("/proc/self/clear_refs").write_text("5")
    before = rss("VmRSS")
    with tempfile.TemporaryDirectory() as folder: rouge_l(captions, folder, workers)
    return rss("VmHWM") - before

def peak_of(args):
    "`peak` in a fresh process."
    return float(subprocess.run([sys.executable, __file__, "--job", json.dumps(vars(args))], capture_output=True, text=True, check=True).stdout)


def compare(args, captions, folder):
    "Seconds of every round: naive a pair, ours in all, ours opened again; and the pairs naive was timed on."
    words = [t.lower().split(" ") for t in captions.texts]
    references = [[words[c] for c in captions.of(i)] for i in range(len(captions.image_ids))]
    rng,times,pairs = random.Random(args.seed),{"naive": [], "ours": [], "again": []},0
    for k in range(args.rounds):
        sample = [(rng.randrange(len(words)),rng.randrange(len(references))) for _ in range(args.sample)]
        n = sum(len(references[i]) for _,i in sample)
        seconds,want = timed(lambda: [naive(words[c], references[i]) for c,i in sample])
        times["naive"].append(seconds/n)
        seconds,got = timed(lambda: rouge_l(captions, folder/str(k), args.workers))
        times["ours"].append(seconds)
        times["again"].append(timed(lambda: rouge_l(captions, folder/str(k), args.workers))[0])
        assert np.array_equal(got.values[tuple(zip(*sample))], np.float32(want)), "a sampled score differs from the naive one"
        pairs += n
    return times,pairs

def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--images", type=int, help="how many images; all by default")
    p.add_argument("--workers", type=int, default=2, help="threads of ours")
    p.add_argument("--sample", type=int, default=10_000, help="captions x images the naive loop is timed on, a round")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    p.add_argument("--job", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.job: return argparse.Namespace(**json.loads(args.job), measure=True)
    if args.quick: args.images,args.sample,args.rounds = 200,200,2
    return args

def main():
    args = arguments()
    captions,what = data(args)
    if "measure" in args: return print(peak(captions, args.workers))
    print(f"# Relevance\n\n{machine()}, {args.workers} threads; seed {args.seed}\n")
    with tempfile.TemporaryDirectory() as folder: times,sampled = compare(args, captions, Path(folder))
    t,pairs = {k: statistics.median(v) for k,v in times.items()},len(captions)**2 # every caption is a reference once
    print(f"## ROUGE-L: {len(captions):,} captions x {len(captions.image_ids):,} images, {pairs/1e6:,.1f} M pairs of captions; {what}\n\n"
          f"Medians of {args.rounds} interleaved rounds; naive on {sampled:,} random pairs, all scores equal.\n")
    print(markdown_table(["", "seconds", "microseconds a pair", "x faster", "extra memory MB"],
        [["naive, projected", f"{t['naive']*pairs:,.0f}", f"{1e6*t['naive']:.2f}", "1", "-"],
         ["ours, written to disk", f"{t['ours']:.2f}", f"{1e6*t['ours']/pairs:.4f}", f"{t['naive']*pairs/t['ours']:,.0f}", f"{peak_of(args):,.0f}"],
         ["ours, opened again", f"{t['again']:.3f}", "-", "-", "-"]]))
    print("\nseconds, all rounds:", "; ".join(f"{k} {', '.join(f'{o:.3g}' for o in v)}" for k,v in times.items()))

if __name__ == "__main__": main()
