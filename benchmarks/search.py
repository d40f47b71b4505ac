"""Recall, time and size of an index: exact in memory against Qdrant Edge in two stages.

Images and sentences:

* `--scenes FOLDER --run RUN`: drawn scenes, drawn where they are missing, encoded by a trained model
* `--photos FOLDER --run RUN`: a collection of photographs. The feature map of one, 9 x 9 cells, gives many images: a crop of at least 5 x 5 cells,
  mirrored or not, and the same 35 windows of it, encoded. Crops of one photograph resemble each other, so the share of the exact ten that are crops
  of the first one's photograph is printed. `--dim 64` projects the model's vectors to so many numbers; what that costs on the collection's test part
  is printed. Maps and vectors are kept in `--keep`, and an interrupted encoding goes on.
* neither: synthetic vectors

Recall is against the exact answer over the stored vectors; an image whose exact score is that of the first or of the tenth, to 2e-6, is as right as
that one. A time is that of one call of `Index.search` with one encoded sentence, to its ten hits; every sentence was asked once before, so the files
that it needs were read. With `--keep-index` an index of an earlier run is measured again, and its time to build stays that of the run that made it.
`--growth` prints the candidates of the first stage alone that hold 90, 95 and 99 % of the exact ten.

`--centroids PYTHON` and `--tachiom PYTHON` measure `other_indexes.py` beside ours, each by a Python that has it. They know no cosine of whole vectors,
so their recall is against the exact answer of the alignment alone.
"""
import argparse, os, re, shutil, subprocess, sys, tempfile, time, warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fastcore.basics import chunked
from matplotlib.ticker import LogLocator, NullLocator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import cpu_info, described_scenes, machine, rss
from other_indexes import INDEXES, bytes_of, timed_search
from teran_nb.core.files import atomic, digest, read_json, write_json
from teran_nb.core.packed import Packed
from teran_nb.core.show import markdown_table, progress
from teran_nb.data.collection import Collection
from teran_nb.data.features import Features, Regions
from teran_nb.look.figures import COLOURS, grid, save_figure
from teran_nb.measure.evaluation import evaluate
from teran_nb.model.encoded import Encoded
from teran_nb.model.encoder import Encoder
from teran_nb.model.alignment import POOLINGS
from teran_nb.model.saving import load_or_encode
from teran_nb.photos.extractors import map_windows
from teran_nb.scenes.scenes import SEED_STEP, draw_world
from teran_nb.search.first_stage import FirstStage, everyday_sentences
from teran_nb.search.index import Index
from teran_nb.training.runs import load_model

HELD_OUT = 200 # Sentences that ask; the first stage learns from others


# data: encoded images, encoded captions, and the photograph of each image

def synthetic(args):
    "Regions near one of 3,000 directions, eight of them in an image; words near the regions of one image."
    g = torch.Generator().manual_seed(args.seed)
    def near(x, cosine):
        noise = F.normalize(torch.randn(x.shape, generator=g), dim=-1)
        return F.normalize(cosine*x + (1 - cosine**2)**.5*noise, dim=-1)
    latent = F.normalize(torch.randn(3000, args.dim, generator=g), dim=1)
    topics = torch.multinomial((1/torch.arange(1, 3001)**.7).expand(args.images, -1), 8, generator=g)
    regions = near(latent[topics.gather(1, torch.randint(8, (args.images,args.regions), generator=g))], .6)
    owner = torch.randint(args.images, (2000 + HELD_OUT,1), generator=g)
    words = near(regions[owner,torch.randint(args.regions, (len(owner),10), generator=g)], .5)
    images = Packed(regions.flatten(0, 1), range(0, args.images*args.regions + 1, args.regions))
    return as_encoded(images),as_encoded(Packed(words.flatten(0, 1), range(0, 10*len(words) + 1, 10)), "sentence"),None

WORLD,STORE = 10_000,5000 # Scenes with captions, and scenes of each store of others

def scenes(args, model):
    "Drawn scenes, and captions of the first 10,000."
    world,seed = Path(args.scenes)/"scenes-100",100
    if not world.is_dir(): draw_world(world, (WORLD - 2,1,1), seed, args.workers)
    stores = [(Path(args.scenes)/f"described-{i:03}",(seed + 1)*SEED_STEP + i*STORE) for i in range(-(-max(0, args.images - WORLD)//STORE))]
    for store,first in stores: described_scenes(store, first, STORE, args.workers)
    collections = [Collection.open(world),*[Collection(Features(store)) for store,_ in stores]]
    images = Packed.cat([load_or_encode(model, c, args.keep).parts for c in collections])[:args.images]
    return as_encoded(images),some_captions(model, collections[0].captions.texts),None

class Narrow(Encoder):
    "A model whose vectors are projected to fewer numbers."
    def __init__(self, model, dim, images, captions):
        self.model,self.fingerprint = model,f"{model.fingerprint} of {dim} numbers"
        self.info = replace(model.info, own_score="") # an Encoder itself adds the weighted cosine of whole vectors
        self.of_parts = self._directions(images.parts.values, captions.parts.values, dim)
        self.of_whole = self._directions(images.whole, captions.whole, dim)
    @staticmethod
    def _directions(x, y, dim):
        "The directions in which both sides vary most, `(numbers, dim)`."
        return torch.linalg.eigh(x.T @ x/len(x) + y.T @ y/len(y)).eigenvectors[:,-dim:]
    def _narrow(self, encoded):
        parts = Packed(F.normalize(encoded.parts.values @ self.of_parts, dim=1), encoded.parts.offsets)
        return replace(encoded, parts=parts, whole=F.normalize(encoded.whole @ self.of_whole, dim=1))
    def encode_images(self, *args, **options): return self._narrow(self.model.encode_images(*args, **options))
    def encode_captions(self, *args, **options): return self._narrow(self.model.encode_captions(*args, **options))

def photographs(args, model):
    "Crops of photographs, and captions of the photographs."
    collection = Collection.open(args.photos)
    extractor = model.find_extractor()
    maps = feature_maps(collection, extractor, Path(args.keep))
    captions = model.encode_captions(some_of(collection.captions.texts))
    if args.dim < captions.parts.dim:
        sample = model.encode_images(crops(maps, range(2048), np.random.default_rng(args.seed), extractor.name))
        narrow = Narrow(model, args.dim, sample, captions)
        totals = [100*evaluate(m, collection.test).metrics["rsum"] for m in (model,narrow)]
        print(f"rsum on the test part {totals[1]:.1f} with {args.dim} numbers, {totals[0]:.1f} with all {captions.parts.dim}\n", flush=True)
        model,captions = narrow,narrow.encode_captions(captions.names)
    return model,encoded_crops(args, maps, model, extractor.name),captions,np.arange(args.images) % len(maps)

def feature_maps(collection, extractor, folder):
    "The feature map of every photograph, `(photographs, cells, dim)` float16, made where it is not there."
    path = folder/f"maps-{digest([collection.features.manifest['sha256'],extractor.name])[:12]}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        batches = []
        for some in chunked(progress(list(collection), desc="feature maps"), 32):
            batches.append(extractor.maps([image.picture() for image in some]).flatten(2).mT.half())
        with atomic(path) as unfinished, open(unfinished, "wb") as file: np.save(file, torch.cat(batches).numpy())
    return np.load(path, mmap_mode="r")

CHUNK = 2048 # Crops that are encoded, and kept, at once
LARGEST = 2**20 # Crops that a file has room for
HAS_BF16 = "avx512_bf16" in cpu_info() # a processor without it is faster in float32

def encoded_crops(args, maps, model, extractor_name):
    "Encoded crops in half precision, in files."
    n,regions = args.images,35
    folder = Path(args.keep)/f"crops-{digest([model.fingerprint,args.photos,args.seed])[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder/"done.json"
    shapes = {"parts.npy": (LARGEST,regions,args.dim), "whole.npy": (LARGEST,args.dim)} # files with holes, so that more can be encoded later
    if not done.is_file():
        for name,shape in shapes.items(): np.lib.format.open_memmap(folder/name, "w+", np.float16, shape)
        write_json(done, 0)
    parts,whole = (np.load(folder/name, mmap_mode="r+") for name in shapes)
    for start in progress(range(read_json(done), n, CHUNK), desc=f"encode crops, {CHUNK:,} at once"):
        numbers = range(start, start + CHUNK)
        with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BF16): some = model.encode_images(crops(maps, numbers, np.random.default_rng((args.seed,start)), extractor_name))
        parts[start:start+CHUNK] = some.parts.values.view(CHUNK, regions, -1).half().numpy()
        whole[start:start+CHUNK] = some.whole.half().numpy()
        for x in (parts,whole): x.flush()
        write_json(done, start + CHUNK)
    packed = Packed(torch.from_numpy(parts[:n].reshape(n*regions, -1)), range(0, n*regions + 1, regions))
    return Encoded(torch.from_numpy(whole[:n]), packed, [f"im{i}" for i in range(n)])

def crops(maps, numbers, g, extractor_name):
    "The 35 windows of random parts of maps of an extractor, mirrored or not."
    side = round(maps.shape[1]**.5)
    images = []
    for number in numbers:
        height,width = g.integers(5, side + 1, 2)
        top,left = g.integers(side - height + 1),g.integers(side - width + 1)
        part = torch.from_numpy(np.array(maps[number % len(maps)])).float().view(side, side, -1)[top:top+height,left:left+width]
        if g.random() < .5: part = part.flip(1)
        weights,boxes = windows_of(int(height), int(width))
        images.append(Regions(f"im{number}", (weights @ part.flatten(0, 1)).half().numpy(), boxes, (288,288), extractor=extractor_name))
    return images

@cache
def windows_of(height, width):
    "Weights of the cells of a crop, and the windows as boxes."
    weights,fractions = map_windows((height,width))
    return weights,288*np.asarray(fractions, np.float32)

def some_of(texts):
    "A sample of captions."
    return [texts[i] for i in torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:6000 + HELD_OUT].tolist()]

def some_captions(model, texts): return as_encoded(model.encode_captions(some_of(texts)).weighted_parts, "sentence")


# measuring

def as_encoded(parts, name="im"): return Encoded(torch.zeros(len(parts), 1), parts, [f"{name}{i}" for i in range(len(parts))])

def exact_best(model, images, sentences, top=20):
    "Scores and rows of the best images of each sentence over half-precision vectors, each `(sentences, top)`."
    best = []
    for some in progress(list(chunked(range(len(images)), 20_000)), desc="exact answers"):
        stored = images[some[0]:some[-1]+1]
        stored = replace(stored, parts=Packed(F.normalize(stored.parts.values.half().float(), dim=1), stored.parts.offsets),
                         whole=F.normalize(stored.whole.float(), dim=1).half().float())
        sim = torch.cat([model.similarity(stored, sentences[i:i+20]) for i in range(0, len(sentences), 20)], 1)
        scores,rows = sim.topk(min(top, len(sim)), 0)
        best.append((scores,rows + some[0]))
    scores,rows = (torch.cat(x) for x in zip(*best))
    scores,best = scores.topk(min(top, len(scores)), 0)
    return scores.T,rows.gather(0, best).T

def searched(index, sentences):
    "Names of the hits, wall and CPU milliseconds of each sentence."
    return timed_search(lambda sentence: index.search(sentence, 10).ids, [sentences[[i]] for i in range(len(sentences))])

def beside(name, python, images, exact, sentences, folder):
    "Rows of an index of `other_indexes.py`."
    folder.mkdir()
    for part,packed in (("regions",images.parts),("words",sentences.weighted_parts)):
        np.save(folder/f"{part}.npy", packed.values.numpy().astype(np.float16 if part == "regions" else np.float32))
        np.save(folder/f"{part} of.npy", packed.lengths.numpy())
    environment = {k: v for k,v in os.environ.items() if k != "PYTHONPATH"} # which would lead to our package
    subprocess.run([python,ROOT/"benchmarks/other_indexes.py",folder,name], check=True, env=environment, stdout=sys.stderr)
    result = read_json(folder/"found.json")
    shutil.rmtree(folder)
    rows = []
    for what,(hits,*times) in result["found"].items():
        names = [[f"im{i}" for i in some] for some in hits]
        rows.append(row(len(images), what, exact, (names,*times), result["build"], result["bytes"]) | {"resident MB": result["resident"]})
    return rows

HEADER = ["images","search","R@1 %","R@10 %","wall ms","95 %","CPU ms","95 %","build min","kB an image on disk","resident MB"]

def row(images, what, exact, found, build, size):
    "One line of the table, as a dictionary."
    names,wall,cpu = found
    first = np.mean([ids[0] in right_ids(*best, 1) for ids,*best in zip(names, *exact)])
    ten = np.mean([len(right_ids(*best, 10).intersection(ids))/10 for ids,*best in zip(names, *exact)])
    numbers = [100*first, 100*ten, *np.percentile(wall, (50,95)), *np.percentile(cpu, (50,95)), build/60, size/images/1000, rss("VmRSS")]
    return dict(zip(HEADER[:1] + ["search","R@1 %","R@10 %","wall ms","wall 95 %","CPU ms","CPU 95 %","build min","kB an image","resident MB"],
                    [images, what, *[round(float(n), 3) for n in numbers]]))

def right_ids(scores, rows, top):
    "Names of the `top` best images, and of those that score as much as the last of them."
    return {f"im{row}" for row in rows[scores > scores[top-1] - 2e-6].tolist()}

def build(model, images, learning, folder):
    "Fill an index, whose seconds are kept beside it; one that is there chooses its number of candidates anew."
    built = folder.with_suffix(".json")
    index = Index(model, folder)
    if not built.is_file():
        start = time.perf_counter()
        index.add(images, sentences=learning, batch_size=512, show_progress_bar=True)
        write_json(built, time.perf_counter() - start)
    elif index.layout.is_learned: index._measure()
    index.close()
    return Index(model, folder),read_json(built)

def measure(model, images, captions, owner, args, folder):
    "One size: exact in memory, then an index in a folder with the measured and with other numbers of candidates."
    n = len(images)
    sentences,learning = captions[:args.sentences],captions[HELD_OUT:HELD_OUT+2000]
    exact = exact_best(model or Encoder(), images, sentences)
    if owner is not None:
        origins = owner[exact[1][:,:10].numpy()]
        same = np.mean(origins == origins[:,:1])
        print(f"{100*same:.0f} % of the exact ten are crops of the first one's photograph\n")
    rows = []
    if n <= 100_000:
        memory = Index(model)
        memory.add(images)
        size = 2*images.parts.dim*len(images.parts.values)
        rows.append(row(n, "exact, in memory", exact, searched(memory, sentences[:20]), 0, size))
        del memory
    place = Path(args.keep_index or folder)/str(n)
    index,seconds = build(model, images, learning, place)
    for candidates in (0,*args.candidates):
        index.candidates = candidates
        what = f"two stages, {index.candidates:,} candidates{'' if candidates else ', measured'}"
        rows.append(row(n, what, exact, searched(index, sentences), seconds, bytes_of(place)))
    index.close()
    if not args.keep_index: shutil.rmtree(place)
    others = {name: getattr(args, name) for name in INDEXES if getattr(args, name)}
    if others:
        parts,words = as_encoded(images.parts),as_encoded(sentences.weighted_parts, "sentence")
        aligned = exact_best(Encoder(), parts, words)
        for name,python in others.items(): rows += beside(name, python, parts, aligned, words, folder/"other")
    return rows

def growth(model, images, captions, args):
    "Candidates of the first stage alone that hold a share of the exact ten, with words of several kinds."
    sentences = captions[:args.sentences]
    exact = exact_best(model or Encoder(), images, sentences, 10)[1]
    info = (model or Encoder()).info
    learning = {"2,000 captions": captions[HELD_OUT:HELD_OUT+2000].weighted_parts}
    if args.everyday is not None: learning[f"{len(args.everyday):,} sentences of ours"] = args.everyday
    rows = []
    for name,words in learning.items():
        start = time.perf_counter()
        sample = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:8192]]
        stage = FirstStage.learn(sample.parts.to("cpu", torch.float32), words, info.pooling)
        learned = time.perf_counter() - start
        vectors = torch.cat([stage.image_vectors(images.parts[i:i+512].to("cpu", torch.float32))[0] for i in range(0, len(images), 512)]).half().float()
        first = torch.stack([stage.sentence_vector(sentence_words(info, sentences[[j]])) for j in range(len(sentences))]) @ vectors.T
        if info.global_weight: first += info.global_weight*sentences.whole @ images.whole.float().T
        ranks = first.argsort(1, descending=True).argsort(1).gather(1, exact).flatten() + 1
        rows.append([name, f"{learned:.0f}", f"{time.perf_counter() - start - learned:.0f}", *[int(np.ceil(np.percentile(ranks, s))) for s in (90,95,99)]])
        print(rows[-1], flush=True)
    print(markdown_table(["words","s to learn","s for the vectors","candidates for 90 %","95 %","99 %"], rows) + "\n", flush=True)

def sentence_words(info, sentence):
    "The words of a sentence, such that their sum is its pooled alignment."
    words = sentence.weighted_parts.values
    return words/max(1, len(words)) if POOLINGS[info.pooling].means else words

RECALLS = (0,50,80,85,90,95,98,99,99.5,100) # Ticks of a scale that gives the last per cent more room

def candidates_of(row): return int(re.sub(r"\D", "", row["search"]) or 0)

def show_recall(rows, ax):
    "Recall of the exact ten against CPU milliseconds, with the number of candidates at each point."
    for way,colour,marker in zip(("exact","two stages",*INDEXES), COLOURS, "os^v"):
        own = sorted((candidates_of(row),row["CPU ms"],row["R@10 %"]) for row in rows if row["search"].startswith(way))
        if own: ax.plot(*zip(*[point for _,*point in own]), lw=1, color=colour, marker=marker, markersize=6, markerfacecolor="none", label=way)
        for k,(n,*point) in enumerate(own): # below and above in turn, since neighbours may lie on each other
            if way != "exact": ax.annotate(f"{n:,}", point, (6,4 if k % 2 else -9), textcoords="offset points", fontsize=8)
    least = min(row["R@10 %"] for row in rows)
    def stretch(recall): return -np.log10(np.maximum(100.5 - recall, .01))
    ax.set_yscale("function", functions=(stretch, lambda y: 100.5 - 10**-y))
    ax.set_yticks([v for v in RECALLS if v >= least - 5])
    ax.set_ylim(min(99, least - .5 - .15*(100 - least)), 100.1)
    ax.set_xscale("log")
    spent = [row["CPU ms"] for row in rows]
    ax.xaxis.set_major_locator(LogLocator(subs=(1,2,5) if max(spent) > 5*min(spent) else range(1, 10)))
    for axis in (ax.xaxis,ax.yaxis): axis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set(xlabel="CPU ms", ylabel="recall of the exact ten, %")
    ax.grid(alpha=.3)

def other_sizes(path, rows):
    "What former runs measured at other sizes."
    measured = {row["images"] for row in rows}
    return [row for row in (read_json(path)["rows"] if Path(path).is_file() else []) if row["images"] not in measured]

def draw(path):
    "The figure of measured rows, an axis for each size; the numbers are those of candidates."
    rows = read_json(path)["rows"]
    sizes = list(dict.fromkeys(row["images"] for row in rows))
    axes = grid(len(sizes), len(sizes), (4,3.4))
    for ax,n in zip(axes, sizes):
        show_recall([row for row in rows if row["images"] == n], ax)
        ax.set_title(f"{n:,} images")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    save_figure(axes[0], Path(path).with_suffix(".png"))

def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--scenes", default="", help="folder where drawn scenes are kept")
    p.add_argument("--photos", default="", help="collection of photographs")
    p.add_argument("--dim", type=int, default=64, help="numbers of a vector of photographs and of synthetic images")
    p.add_argument("--run", default="runs/scenes-teran-mrsw", help="the model that encodes")
    p.add_argument("--images", type=int, default=10_000, help="of the largest index")
    p.add_argument("--sizes", type=int, nargs="*", default=[], help="of several indexes; by default one of all images")
    p.add_argument("--sentences", type=int, default=HELD_OUT, help=f"that ask, {HELD_OUT} at most")
    p.add_argument("--candidates", type=int, nargs="*", default=[50,200,800], help="beside the measured number")
    p.add_argument("--growth", action="store_true", help="print the candidates of the first stage alone too")
    p.add_argument("--json", default="", help="file for the rows, where those of other sizes stay; a figure of them stands beside it")
    for name in INDEXES: p.add_argument(f"--{name}", default="", metavar="PYTHON", help=f"measures the index `{name}` too")
    p.add_argument("--keep", default="runs/benchmark-vectors", help="folder where encoded images are kept")
    p.add_argument("--keep-index", default="", help="folder of the indexes, which stay there and are opened again")
    p.add_argument("--workers", type=int, default=2, help="processes that draw scenes")
    p.add_argument("--regions", type=int, default=35, help="of synthetic images")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = p.parse_args()
    if args.quick: vars(args).update(images=300, regions=5, dim=16, sentences=6, candidates=[20], scenes="", photos="")
    return args

def main():
    args = arguments()
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    args.everyday = None
    if args.scenes or args.photos:
        model = load_model(args.run)
        ours = everyday_sentences()
        known = [text for text in ours if all(map(model.is_known, text.split()))] # as an index without captions chooses them
        if args.photos: model,images,captions,owner = photographs(args, model)
        else: images,captions,owner = scenes(args, model)
        args.everyday = model.encode_captions(known if len(known) >= 500 else ours).weighted_parts
    else: images,captions,owner = synthetic(args)
    if not args.photos: model = None # the index ranks by the alignment
    kind = f"{'photographs' if args.photos else 'scenes'}, encoded by {Path(args.run).name}" if args.everyday is not None else "synthetic vectors"
    print(f"# Search\n\n{machine()}; seed {args.seed}\n\n{len(images):,} images, {kind}, {len(images.parts.values)/len(images):.1f} regions of {images.parts.dim} "
          f"numbers; {args.sentences} sentences of {captions.parts.lengths.float().mean():.1f} words\n", flush=True)
    rows = []
    for n in args.sizes or [len(images)]:
        if args.growth: growth(model, images[:n], captions, args)
        Path(args.keep).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=args.keep) as folder:
            rows += measure(model, images[:n], captions, None if owner is None else owner[:n], args, Path(folder))
        print(markdown_table(HEADER, [[f"{v:,}" if isinstance(v, int) else str(v) for v in r.values()] for r in rows]) + "\n", flush=True)
        if args.json: write_json(args.json, {"machine": machine(), "rows": sorted([*other_sizes(args.json, rows), *rows], key=lambda r: r["images"])})
    if args.json: draw(args.json)

if __name__ == "__main__": main()
