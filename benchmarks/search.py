"""Recall, time and size of `teran_nb.search`: exact in memory against Qdrant Edge in two stages, in one process, interleaved.

Images and sentences:

* `--worlds FOLDER --run RUN`: drawn scenes, encoded by a trained model. The first 10,000 have captions; missing scenes are drawn.
* `--collection FOLDER`: the images and captions of a collection, before those of `--worlds`.
* neither: synthetic vectors, clustered as those of trained models are. A region is one of `--latent` directions (some common, most
  rare; eight in an image) plus noise, with a cosine of 0.6. A sentence is 8 to 14 regions of one image plus noise.

Recall is against the exact answer over the stored vectors: whether the first image is the same, and how many of the ten best are found.
A time is that of one call of `Index.search` with one encoded sentence, with the vectors of its ten answers. The index's files are in
the page cache, so no disk is timed.

Tables, in markdown, by `--parts`:

* `measure`: recall, time and size of both ways to search
* `growth`: candidates of the first stage alone that hold 90, 95 and 99 % of the exact ten, at several sizes
* `scale`: what `lab/costs.py` computes, beside the rows of `--json`
"""
import argparse, ctypes, gc, shutil, sys, tempfile, time, warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ticker import LogLocator, NullLocator
from scipy.sparse import csr_matrix

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import described_scenes, machine, rss
from teran_nb.core.show import markdown_table
from teran_nb.core.files import read_json, write_json
from teran_nb.core.packed import Packed
from teran_nb.data.collection import Collection
from teran_nb.data.features import Features
from teran_nb.scenes.scenes import SEED_STEP, draw_world
from teran_nb.training.runs import load_model
from teran_nb.look.figures import COLOURS, grid, save
from teran_nb.model.encoder import Encoded
from teran_nb.model.encoding_cache import load_or_encode
from teran_nb.model.similarity import similarity
from teran_nb.search.first_stage import Centroids
from teran_nb.search.index import Index
from lab.costs import cost, measure_costs


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
    sentences = Packed.from_sets([one() for _ in range(args.sentences)])
    return images,sentences

WORLD,STORE = 10_000,5000 # Scenes with captions, and scenes of each store of others

def drawn(folder, images, workers):
    "Collections and stores of at least so many scenes, drawn where they are not there yet."
    world,seed = Path(folder)/"scenes-100",100
    if not world.is_dir(): draw_world(world, (WORLD - 2,1,1), seed, workers)
    stores = [(Path(folder)/f"described-{i:03}",(seed + 1)*SEED_STEP + i*STORE) for i in range(-(-max(0, images - WORLD)//STORE))]
    for store,first in stores: described_scenes(store, first, STORE, workers)
    return [Collection.open(world),*[Collection(Features(store)) for store,_ in stores]]

def scenes(args):
    "Images and captions as a trained model encodes them."
    model = load_model(args.run)
    collections = [Collection.open(folder) for folder in args.collection]
    if args.worlds: collections += drawn(args.worlds, args.images - sum(map(len, collections)), args.workers)
    images = Packed.cat([load_or_encode(model, c, args.keep).parts for c in collections])[:args.images]
    texts = [text for c in collections for text in c.captions.texts][:5*len(images)]
    rows = np.linspace(0, len(texts) - 1, args.sentences).astype(int)
    return images,model.encode_captions([texts[i] for i in rows]).parts

def as_encoded(parts, name="im"): return Encoded(torch.zeros(len(parts), 1), parts, [f"{name}{i}" for i in range(len(parts))])

def as_sentence(words): return Encoded(torch.zeros(1, 1), Packed(words, [0,len(words)]), ["a sentence"])


# measuring

def rounded(images): return Packed(F.normalize(images.values.half().float(), dim=1), images.offsets)

def exact_names(images, sentences, k=10):
    "The ten best of each sentence over half-precision vectors."
    stored = rounded(images)
    best = [similarity(stored, sentences[i:i+50]).topk(k, 0).indices.T for i in range(0, len(sentences), 50)]
    return [[f"im{i}" for i in row] for row in torch.cat(best).tolist()]

def fill(index, images, batch_size=512):
    "CPU seconds of filling an index."
    start = time.process_time()
    index.add(as_encoded(images), batch_size=batch_size)
    index.optimize()
    return time.process_time() - start

def settled():
    "Resident MB after freed memory went back and the peak was forgotten: of the process itself, and of mapped files."
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return rss("RssAnon"),rss("RssFile")

def ask(index, sentences, candidates):
    "Names, wall and CPU milliseconds of each sentence."
    index.candidates = candidates
    names,wall,cpu = [],[],[]
    for i in range(len(sentences)):
        sentence = as_sentence(sentences[i])
        start,cpu_start = time.perf_counter(),time.process_time()
        hits = index.search(sentence, 10)
        wall.append(1000*(time.perf_counter() - start))
        cpu.append(1000*(time.process_time() - cpu_start))
        names.append(hits.ids)
    return names,wall,cpu

def recalls(names, exact):
    "Percent of first places, and of the ten best."
    first = np.mean([a[0] == b[0] for a,b in zip(names, exact)])
    ten = np.mean([len(set(a) & set(b))/len(b) for a,b in zip(names, exact)])
    return [f"{100*first:.1f}", f"{100*ten:.1f}"]

def row(what, names, wall, cpu, exact):
    return [what, *recalls(names, exact), f"{np.median(cpu):.1f}", f"{np.percentile(cpu, 95):.1f}", f"{np.median(wall):.1f}", f"{np.percentile(wall, 95):.1f}"]

HEADER = ["","R@1 %","R@10 %","CPU ms","95 %","wall ms","95 %"]

SIZES = ["","centroids","bytes an image","CPU s to fill","MB more while filled","MB of its own, searched","MB of mapped files"]

def measure(images, sentences, args, folder):
    "Both ways of searching at several sizes, their recall and what they cost; also as rows of a figure."
    points = []
    for n in args.sizes or [len(images)]:
        measured,searches,sizes = measure_size(images[:n], sentences, args, folder/f"of-{n}")
        points += measured
        print(f"{n:,} images\n\n" + markdown_table(HEADER, searches) + "\n\n" + markdown_table(SIZES, sizes) + "\n", flush=True)
        if args.json: write_rows(args.json, points)
    if args.json: draw(args.json)

def write_rows(path, points):
    "Add points to a file, in which those of other sizes stay."
    written = read_json(path) if Path(path).is_file() else {"rows": []}
    sizes = {point["images"] for point in points}
    rows = [row for row in written["rows"] if row["images"] not in sizes] + points
    write_json(path, written | {"machine": machine(), "rows": sorted(rows, key=lambda point: point["images"])})

def measure_size(images, sentences, args, folder):
    "One size: the points of the figure, rows of searches, and rows of sizes."
    exact,points,searches,sizes = exact_names(images, sentences),[],[],[]
    def note(way, found, bytes):
        searches.append(found)
        points.append({"images": len(images), "way": way, "what": found[0], "R@1 %": float(found[1]), "R@10 %": float(found[2]), "CPU ms": float(found[3]),
                       "wall ms": float(found[5]), "bytes an image": round(bytes)})
    (own,_),start = settled(),time.process_time()
    memory = Index()
    memory.add(as_encoded(images))
    seconds = time.process_time() - start
    memory.search(as_sentence(sentences[0]))
    size = memory.backend.bytes()/len(images)
    note("exact, in memory", row("exact, in memory", *ask(memory, sentences[:max(2, len(sentences)//10)], 0), exact), size)
    sizes.append(["exact, in memory", "", f"{size:,.0f}", f"{seconds:,.0f}", f"{rss('VmHWM') - own:,.0f}", f"{rss('RssAnon') - own:,.0f}", ""])
    del memory
    own,files = settled()
    index = Index(None, folder)
    seconds,peak = fill(index, images),rss("VmHWM") - own - files
    index.close()
    own,files = settled()
    index = Index(None, folder)
    ask(index, sentences[:5], 1000) # a warm-up
    size = index.backend.bytes()/len(images)
    for n in args.candidates:
        if n < len(images): note("two stages", row(f"two stages, {n:,} candidates", *ask(index, sentences, n), exact), size)
    sizes.append(["two stages", f"{len(index.backend.first):,}", f"{size:,.0f}", f"{seconds:,.0f}", f"{peak:,.0f}", f"{rss('RssAnon') - own:,.0f}",
                  f"{rss('RssFile') - files:,.0f}"])
    index.close()
    if args.keep_index: shutil.copytree(folder, args.keep_index)
    shutil.rmtree(folder)
    return points,searches,sizes

RECALLS = (0,50,80,85,90,95,98,99,99.5,100) # Ticks of a scale that gives the last per cent more room

def show_recall_by_cost(rows, cost, ax, legend):
    "Recall of the exact ten against a cost, a line for each way of searching; the grey steps are the best recall for each cost."
    for way,colour,marker in zip(dict.fromkeys(row["way"] for row in rows), COLOURS, "os^Dos^"):
        own = [row for row in rows if row["way"] == way]
        ax.plot([row[cost] for row in own], [row["R@10 %"] for row in own], lw=1, color=colour, marker=marker, markersize=6,
                markerfacecolor="none", label=way)
    ordered = sorted((row[cost],-row["R@10 %"]) for row in rows)
    front = np.maximum.accumulate([-recall for _,recall in ordered])
    ax.step([x for x,_ in ordered], front, where="post", color="grey", lw=4, alpha=.3, zorder=0, label="best at this cost")
    ax.set(xlabel=cost, ylabel="recall of the exact ten, %", title=f"Recall of the exact ten against {cost}")
    least = min(row["R@10 %"] for row in rows)
    def stretch(recall): return -np.log10(np.maximum(100.5 - recall, .01))
    ax.set_yscale("function", functions=(stretch, lambda y: 100.5 - 10**-y))
    ax.set_yticks([v for v in RECALLS if v >= least - 5])
    ax.set_ylim(100.5 - 1.15*(100.5 - least), 100.1)
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")
    if max(row[cost] for row in rows) > 4*min(row[cost] for row in rows):
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1,2,5)))
        ax.xaxis.set_minor_locator(NullLocator())
    else: ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(alpha=.3)
    title = "a line: from few\ncandidates to many"
    if legend: ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1,1), title=title, title_fontsize=8)

def draw(path):
    "The figure of what `measure` wrote."
    written = read_json(path)
    rows = written["rows"]
    sizes = list(dict.fromkeys(row["images"] for row in rows))
    axes = grid(2*len(sizes), 2, (5,3.4), titles=[f"{n:,} images" for n in sizes])
    for i,n in enumerate(sizes):
        own = [row for row in rows if row["images"] == n]
        show_recall_by_cost(own, "CPU ms", axes[2*i], False)
        show_recall_by_cost(own, "bytes an image", axes[2*i + 1], True)
    save(axes[0], Path(path).with_suffix(".png"))


# the first stage alone

SHARES = (90,95,99) # Of the exact ten

def ranks(images, sentences):
    "Rank of each of the exact ten by the first stage alone, from 1; and the number of centroids."
    exact = similarity(images, sentences).topk(10, 0).indices.T.numpy()
    first = Centroids.learn(images, len(images))
    vectors = first.of_images([images[i].numpy() for i in range(len(images))])
    indices = [v.indices if v is not None else np.zeros(0, int) for v in vectors]
    starts = np.cumsum([0,*map(len, indices)])
    stored = csr_matrix((np.ones(starts[-1], np.float32), np.concatenate(indices), starts), (len(images),len(first)))
    found = []
    for i in range(len(sentences)):
        sentence = first.of_sentence(sentences[i].numpy())
        weights = np.zeros(len(first), np.float32)
        weights[sentence.indices] = sentence.values
        order = np.argsort(-(stored @ weights), kind="stable")
        rank = np.empty(len(order), int)
        rank[order] = np.arange(1, len(order) + 1)
        found += rank[exact[i]].tolist()
    return found,len(first)

def growth(images, sentences, args):
    "Candidates needed for a share of the exact ten, at several sizes, and the power with which they grow."
    stored,rows,needed = rounded(images),[],[]
    sizes = args.sizes or [n for n in (len(images)//8, len(images)//4, len(images)//2, len(images)) if n > 20]
    for n in sizes:
        found,centroids = ranks(stored[:n], sentences)
        needed.append(np.percentile(found, SHARES))
        rows.append([f"{n:,}", f"{centroids:,}", *[f"{v:,.0f}" for v in needed[-1]]])
    powers = [np.polyfit(np.log(sizes), np.log(v), 1)[0] for v in np.array(needed).T] if len(sizes) > 1 else [0]*3
    rows.append(["grows with the power","", *[f"{v:.2f}" for v in powers]])
    print(markdown_table(["images","centroids",*[f"candidates for {s} %" for s in SHARES]], rows) + "\n", flush=True)

def scale(images, sentences, args, folder):
    "What `lab/costs.py` computes from indexes of 1,000 and 4,000 images, beside the rows of two stages that `measure` wrote."
    measured,rows = measure_costs(as_encoded(images[:4000]), as_encoded(sentences[:20]), folder/"scale"),[]
    for row in read_json(args.json)["rows"]:
        if row["way"] != "two stages": continue
        candidates = int(row["what"].split()[-2].replace(",", ""))
        computed = cost(row["images"], measured, candidates)
        rows.append([f"{row['images']:,}", f"{candidates:,}", f"{computed.shard_ms:.1f}", f"{row['CPU ms']:.1f}", f"{measured.bytes_per_image:,.0f}", f"{row['bytes an image']:,}"])
    print(markdown_table(["images","candidates","CPU ms, computed","measured","bytes an image, computed","measured"], rows) + "\n", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--collection", nargs="*", default=[], help="folders of drawn collections; synthetic vectors without")
    p.add_argument("--worlds", default="", help="folder where drawn scenes are kept")
    p.add_argument("--workers", type=int, default=2, help="processes that draw scenes")
    p.add_argument("--run", default="runs/scenes-teran-mrsw", help="the trained run that encodes it")
    p.add_argument("--keep", default="runs/benchmark-vectors", help="folder where encoded images are kept")
    p.add_argument("--keep-index", default="", help="folder where the index of `measure` is left, for `benchmarks/explore.py`")
    p.add_argument("--images", type=int, default=10_000)
    p.add_argument("--regions", type=int, default=36)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--latent", type=int, default=3000, help="latent directions of synthetic images")
    p.add_argument("--sentences", type=int, default=200)
    p.add_argument("--candidates", type=int, nargs="+", default=[100,300,1000,3000])
    p.add_argument("--parts", nargs="+", default=["measure","growth"], choices=["measure","growth","scale"])
    p.add_argument("--json", default="", help="file for the rows of `measure`; a figure of them stands beside it")
    p.add_argument("--draw", default="", help="only draw the figure of this file again")
    p.add_argument("--sizes", type=int, nargs="*", default=[], help="of `measure` and `growth`; by default all images, and halves of them")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = p.parse_args()
    if args.quick: vars(args).update(images=300, dim=32, latent=40, sentences=6, candidates=[10,100], collection=[], worlds="")
    return args

def main():
    args = arguments()
    if args.draw: return draw(args.draw)
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    images,sentences = scenes(args) if args.collection or args.worlds else synthetic(args)
    names = ", ".join(Path(folder).name for folder in args.collection) or "drawn scenes"
    what = f"{names}, encoded by {Path(args.run).name}" if args.collection or args.worlds else "synthetic vectors"
    print(f"# Search\n\n{machine()}; seed {args.seed}\n\n{len(images):,} images, {what}, {len(images.values)/len(images):.1f} regions of {images.dim} numbers each; "
          f"{len(sentences)} sentences of {sentences.lengths.float().mean():.1f} words\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if "measure" in args.parts: measure(images, sentences, args, Path(folder))
        if "growth" in args.parts: growth(images, sentences, args)
        if "scale" in args.parts: scale(images, sentences, args, Path(folder))

if __name__ == "__main__": main()
