"""Speed and memory of ROUGE-L and SPICE of all pairs against plain Python loops, in one process, interleaved.

`python benchmarks/relevance.py` prints two tables in markdown (two minutes on two cores); `--quick` takes seconds and shows only that it runs.

Captions are those of COCO's test split, from ../shared; where they are missing, those of the drawn scenes. The naive reference is the dynamic programming
that the field's evaluation code runs for each caption and reference, here on words that are already split; it is timed on a random sample and given per pair
(one caption, one reference). Ours includes everything: fingerprint, words to characters, scores, the file of the result. Every sampled score must be equal.
Memory is the peak of the resident set over its start, in a fresh process, read from /proc (Linux only).

SPICE is compared from tuples. Its parser needs half an hour for COCO, so the tuples are made here by a rule from the captions' words, about as many as SPICE's,
or read with `--tuples FILE`. Synsets are Meteor's where pycocoevalcap is installed, else a word means only itself. The naive loop has the words and synsets of
each concept as a set, and compares each tuple of a caption with those of an image until one is similar.
"""
import argparse, json, random, re, statistics, subprocess, sys, tempfile, time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine, rss, timed
from teran_nb.data.caption_files import read_captions
from teran_nb.core.show import markdown_table
from teran_nb.measure.relevance import rouge_l, spice
from teran_nb.scenes.scenes import scene_collection
from teran_nb.measure.spice import Tuples, concept_words, read_tuples, with_meanings

COCO = ROOT.parent/"shared"/"data"/"captions"/"coco_testall_caps.txt.gz"


# data and the reference

def data(args):
    "Captions, and what they are called."
    full,what = (read_captions(COCO, per_image=5),"COCO test") if COCO.is_file() else (scene_collection().test.captions,"scenes, test (../shared is not here)")
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

GLUE = set("a an the of in on at with and to is are by for from near over under up down into his her their its it that this two three".split())

def rule_tuples(text):
    "Every second content word of a caption as an object with the word before it, related by the last small word between two of them."
    words = re.findall("[a-z]+", text.lower())
    content = [i for i,w in enumerate(words) if w not in GLUE]
    things = content[1::2] or content
    tuples = {(words[i],) for i in things} | {(words[i],words[before]) for before,i in zip(content[::2], content[1::2])}
    for i,k in zip(things, things[1:]):
        small = [w for w in words[i+1:k] if w in GLUE - {"a","an","the"}]
        tuples.add((words[i],small[-1] if small else "with",words[k]))
    return sorted(tuples)

def tuples_of(args, captions):
    "Tuples of all captions and images, and what they are called."
    if args.tuples: return read_tuples(args.tuples),args.tuples
    parsed = {(text,): rule_tuples(text) for text in captions.texts}
    for texts in captions.texts_by_image(): parsed[texts] = sorted(set().union(*(parsed[text,] for text in texts)))
    if find_spec("pycocoevalcap"): return with_meanings(parsed),"by a rule, with Meteor's synsets"
    return Tuples(parsed),"by a rule, without synsets"

def naive_spice(caption, image, meaning):
    "SPICE of one pair; `meaning` is the words and synsets of each concept."
    def similar(a, b): return len(a) == len(b) and all(not meaning[x].isdisjoint(meaning[y]) for x,y in zip(a, b))
    tp = sum(any(similar(a, b) for b in image) for a in caption)
    if not tp: return 0.
    p,r = tp/len(caption),tp/len(image)
    return min(2*(p*r)/(p+r), 1)


# measuring


def peak(args, captions):
    "Peak resident memory over that at the start, MB, of this process."
    tuples = tuples_of(args, captions)[0] if args.measure == "spice" else None
    Path("/proc/self/clear_refs").write_text("5")
    before = rss("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        if tuples: spice(captions, tuples, cache=folder)
        else: rouge_l(captions, folder, args.workers)
    return rss("VmHWM") - before

def peak_of(args, what):
    "`peak` in a fresh process."
    job = json.dumps(vars(args) | {"measure": what})
    return float(subprocess.run([sys.executable, __file__, "--job", job], stdout=subprocess.PIPE, text=True, check=True).stdout)

def compare_spice(args, captions, folder):
    "Print the table of SPICE."
    tuples,what = tuples_of(args, captions)
    of_captions = [tuples[text] for text in captions.texts]
    of_images = [tuples[texts] for texts in captions.texts_by_image()]
    meaning = {}
    for tuple_ in {t for many in (*of_captions,*of_images) for t in many}:
        for concept in tuple_:
            words = concept_words(concept)
            meaning[concept] = frozenset(words).union(*(tuples.synsets.get(w, ()) for w in words))
    rng,times,sampled = random.Random(args.seed),{"naive": [], "ours": [], "CPU": [], "again": []},0
    for k in range(args.rounds):
        sample = [(rng.randrange(len(of_captions)),rng.randrange(len(of_images))) for _ in range(args.sample)]
        seconds,want = timed(lambda: [naive_spice(of_captions[c], of_images[i], meaning) for c,i in sample])
        times["naive"].append(seconds/len(sample))
        start = time.process_time()
        seconds,got = timed(lambda: spice(captions, tuples, cache=folder/f"spice-{k}"))
        times["CPU"].append(time.process_time() - start)
        times["ours"].append(seconds)
        times["again"].append(timed(lambda: spice(captions, tuples, cache=folder/f"spice-{k}"))[0])
        assert np.array_equal(got.values[tuple(zip(*sample))], np.float32(want)), "a sampled score differs from the naive one"
        sampled += len(sample)
    t,pairs = {k: statistics.median(v) for k,v in times.items()},len(of_captions)*len(of_images)
    counts = f"{sum(map(len, of_captions)):,} tuples of captions, {sum(map(len, of_images)):,} of images, {what}"
    print(f"\n## SPICE from tuples: {len(of_captions):,} captions x {len(of_images):,} images, {pairs/1e6:,.1f} M pairs; {counts}\n\n"
          f"Medians of {args.rounds} interleaved rounds, one thread; naive on {sampled:,} random pairs, all scores equal.\n")
    print(markdown_table(["", "seconds", "CPU seconds", "microseconds a pair", "x faster", "extra memory MB"],
        [["naive, projected", f"{t['naive']*pairs:,.0f}", "-", f"{1e6*t['naive']:.2f}", "1", "-"],
         ["ours, written to disk", f"{t['ours']:.2f}", f"{t['CPU']:.2f}", f"{1e6*t['ours']/pairs:.4f}", f"{t['naive']*pairs/t['ours']:,.0f}",
          f"{peak_of(args, 'spice'):,.0f}"],
         ["ours, opened again", f"{t['again']:.3f}", "-", "-", "-", "-"]]))
    print("\nseconds, all rounds:", "; ".join(f"{k} {', '.join(f'{o:.3g}' for o in v)}" for k,v in times.items()))


def compare(args, captions, folder):
    "Seconds of every round: naive a pair, ours in all, ours opened again; and the pairs naive was timed on."
    words = [t.lower().split(" ") for t in captions.texts]
    references = [[words[c] for c in captions.rows_of(i)] for i in range(len(captions.image_ids))]
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
    p.add_argument("--tuples", help="a file of tuples for these captions, instead of those by the rule")
    p.add_argument("--only", choices=("rouge","spice"), help="only one of the two tables")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    p.add_argument("--job", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.job: return argparse.Namespace(**json.loads(args.job))
    if args.quick: args.images,args.sample,args.rounds = 200,200,2
    return args

def main():
    args = arguments()
    captions,what = data(args)
    if "measure" in args: return print(peak(args, captions))
    print(f"# Relevance\n\n{machine()}, {args.workers} threads; seed {args.seed}\n")
    if args.only != "spice": compare_rouge(args, captions, what)
    if args.only != "rouge":
        with tempfile.TemporaryDirectory() as folder: compare_spice(args, captions, Path(folder))

def compare_rouge(args, captions, what):
    "Print the table of ROUGE-L."
    with tempfile.TemporaryDirectory() as folder: times,sampled = compare(args, captions, Path(folder))
    t,pairs = {k: statistics.median(v) for k,v in times.items()},len(captions)**2 # every caption is a reference once
    print(f"## ROUGE-L: {len(captions):,} captions x {len(captions.image_ids):,} images, {pairs/1e6:,.1f} M pairs of captions; {what}\n\n"
          f"Medians of {args.rounds} interleaved rounds; naive on {sampled:,} random pairs, all scores equal.\n")
    print(markdown_table(["", "seconds", "microseconds a pair", "x faster", "extra memory MB"],
        [["naive, projected", f"{t['naive']*pairs:,.0f}", f"{1e6*t['naive']:.2f}", "1", "-"],
         ["ours, written to disk", f"{t['ours']:.2f}", f"{1e6*t['ours']/pairs:.4f}", f"{t['naive']*pairs/t['ours']:,.0f}", f"{peak_of(args, 'rouge'):,.0f}"],
         ["ours, opened again", f"{t['again']:.3f}", "-", "-", "-"]]))
    print("\nseconds, all rounds:", "; ".join(f"{k} {', '.join(f'{o:.3g}' for o in v)}" for k,v in times.items()))

if __name__ == "__main__": main()
