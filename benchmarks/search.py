"""Recall, time and size of `teran_nb.search`: exact in memory against Qdrant Edge in two and three stages, in one process, interleaved.

Images and sentences:

* `--worlds FOLDER --run RUN`: drawn scenes, encoded by a trained model. The first 10,000 have captions; missing scenes are drawn.
* `--collection FOLDER`: the images and captions of a collection, before those of `--worlds`.
* neither: synthetic vectors, clustered as those of trained models are. A region is one of `--latent` directions (some common, most
  rare; eight in an image) plus noise, with a cosine of 0.6. A sentence is 8 to 14 regions of one image plus noise.

Recall is against the exact answer over the stored vectors: whether the first image is the same, and how many of the ten best are found.
A time is that of one call of `Index.search` with one encoded sentence, with the vectors of its ten answers. The index's files are in
the page cache, so no disk is timed.

Tables, in markdown, by `--parts`:

* `measure`: recall, time and size of each way to search
* `growth`: candidates that find 90, 95 and 99 % of the exact ten, at several sizes
* `strangers`: images of another kind are added, which are regions turned by a random rotation that no centroid was learned from
* `ideas`: other first stages, each a change of `Weights`
* `engine`: quantised and merged regions between the first stage and the last, in Qdrant Edge
* `scan`, `product`: every image compared by its centroids alone, or by product-quantised regions; no engine offers these for sets
* `defaults`: what the default number of candidates finds, and what `Index.calibrate` makes of it
* `poolings`: poolings that are not MaxSim
* `scale`: what `lab/costs.py` computes, beside the rows of `--json`
"""
import argparse, ctypes, gc, shutil, sys, tempfile, time, warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import qdrant_edge
import torch
import torch.nn.functional as F
from scipy.optimize import nnls
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
from teran_nb.data.words import STOP_WORDS
from teran_nb.training.runs import load_model
from teran_nb.look.charts import show_recall_by_cost
from teran_nb.look.figures import grid, save
from teran_nb.model.encoder import Encoded
from teran_nb.model.encoding_cache import load_or_encode
from teran_nb.model.similarity import similarity
from teran_nb.search.centroids import Centroids, default_centroid_count, learn_centroids, merge_regions
from teran_nb.search.edge import EdgeBackend, open_edge
from teran_nb.search.building import IndexConfig
from teran_nb.search.index import Index
from lab.costs import cost, measure_costs


# data

OTHERS = 300 # Sentences that weights are fitted to

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
    sentences = Packed.from_sets([one() for _ in range(args.sentences + OTHERS)])
    return images,sentences[:args.sentences],None,sentences[args.sentences:]

WORLD,STORE = 10_000,5000 # Scenes with captions, and scenes of each store of others

def drawn(folder, images, workers):
    "Collections and stores of at least so many scenes, drawn where they are not there yet."
    world,seed = Path(folder)/"scenes-100",100
    if not world.is_dir(): draw_world(world, (WORLD - 2,1,1), seed, workers)
    stores = [(Path(folder)/f"described-{i:03}",(seed + 1)*SEED_STEP + i*STORE) for i in range(-(-max(0, images - WORLD)//STORE))]
    for store,first in stores: described_scenes(store, first, STORE, workers)
    return [Collection.open(world),*[Collection(Features(store)) for store,_ in stores]]

def scenes(args):
    "Images and captions as a trained model encodes them; also, of each sentence, the word of each vector; and other captions."
    model = load_model(args.run)
    collections = [Collection.open(folder) for folder in args.collection]
    if args.worlds: collections += drawn(args.worlds, args.images - sum(map(len, collections)), args.workers)
    images = Packed.cat([load_or_encode(model, c, args.keep).parts for c in collections])[:args.images]
    texts = [text for c in collections for text in c.captions.texts][:5*len(images)]
    rows = np.linspace(0, len(texts) - 1, args.sentences).astype(int)
    captions = model.encode_captions([texts[i] for i in rows])
    free = np.setdiff1d(np.arange(len(texts)), rows)
    others = model.encode_captions([texts[i] for i in free[np.linspace(0, len(free) - 1, OTHERS).astype(int)]]).parts
    return images,captions.parts,[[words.texts[i].lower() if i >= 0 else "" for i in words.word_of] for words in captions.words],others

def as_encoded(parts, name="im"): return Encoded(torch.zeros(len(parts), 1), parts, [f"{name}{i}" for i in range(len(parts))])


# measuring

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

def build(folder, images, config):
    "An index that is filled."
    index = Index.open(folder, config=config)
    fill(index, images)
    return index

def settled():
    "Resident MB after freed memory went back and the peak was forgotten: of the process itself, and of mapped files."
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return rss("RssAnon"),rss("RssFile")

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

WAYS = {"two stages": {}, "two stages, int8": {"int8": True}, "three stages": {"merged_count": 12}, "three stages, int8": {"merged_count": 12, "int8": True}}
SIZES = ["","centroids","bytes an image","CPU s to fill","MB more while filled","MB of its own, searched","MB of mapped files"]

def measure(images, sentences, args, folder):
    "Ways of searching at several sizes, their recall and what they cost; also as rows of a figure."
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
    memory.search(sentences[:1], 10)
    size = memory.backend.bytes()/len(images)
    note("exact, in memory", row("exact, in memory", *ask(memory, sentences[:max(2, len(sentences)//10)], 0), exact), size)
    sizes.append(["exact, in memory", "", f"{size:,.0f}", f"{seconds:,.0f}", f"{rss('VmHWM') - own:,.0f}", f"{rss('RssAnon') - own:,.0f}", ""])
    del memory
    own,files = settled()
    index = Index.open(folder, config=IndexConfig(centroid_count=args.centroids, merged_count=12, int8=True)) # has the vectors of all ways
    seconds,peak = fill(index, images),rss("VmHWM") - own - files
    for way,changes in WAYS.items():
        index.close()
        own,files = settled()
        index = Index.open(folder)
        index.backend.layout = replace(index.layout, **{"merged_count": 0, "int8": False} | changes)
        ask(index, sentences[:5], 1000) # a warm-up
        size = bytes_of(folder, changes)/len(images)
        for n in args.candidates:
            if n < len(images): note(way, row(f"{way}, {n:,} candidates", *ask(index, sentences, n), exact), size)
        sizes.append([way, f"{len(index.backend.centroids):,}", f"{size:,.0f}", f"{seconds:,.0f}", f"{peak:,.0f}", f"{rss('RssAnon') - own:,.0f}",
                      f"{rss('RssFile') - files:,.0f}"])
    index.close()
    if args.keep_index: shutil.copytree(folder, args.keep_index)
    shutil.rmtree(folder)
    return points,searches,sizes

def bytes_of(folder, changes):
    "Bytes on disk, without the files that a way does not read."
    unread = [word for word,key in (("pooled","merged_count"),("quantized","int8")) if key not in changes]
    files = [p for p in folder.rglob("*") if not any(word in str(p.relative_to(folder)) for word in unread)]
    return sum(512*p.stat().st_blocks for p in files)

def draw(path):
    "The figure of what `measure` wrote."
    written = read_json(path)
    rows = written["rows"]
    if "growth" in written: project(path)
    sizes = list(dict.fromkeys(row["images"] for row in rows))
    axes = grid(2*len(sizes), 2, (5,3.4), titles=[f"{n:,} images" for n in sizes])
    for i,n in enumerate(sizes):
        own = [row for row in rows if row["images"] == n]
        show_recall_by_cost(own, "CPU ms", axes[2*i], legend=False)
        show_recall_by_cost(own, "bytes an image", axes[2*i + 1])
    save(axes[0], Path(path).with_suffix(".png"))

# the first stage alone

@dataclass(frozen=True)
class Weights:
    "How the first stage weighs centroids. The defaults are the library's before the ideas were tried; now it pools regions to 12."
    more:float = 1 # Centroids, in multiples of `default_centroid_count`
    nearest:int = 1 # Centroids of each region
    stored:str = "ones" # What an image says of a centroid: `ones`, `cosine` of its best region with it, `close` (1 at no distance, 0 at twice the mean), `count` of regions
    keep:int = 64 # Centroids that a word may weigh
    power:float = 1 # Of a weight, relative to the greatest of its word
    rare:bool = False # Weigh by the logarithm of the inverse share of images that have the centroid
    skip:bool = False # Leave out stop-words
    pooled:int = 0 # Regions are pooled to so many before they get centroids
    norm:float = 0 # Power of a centroid's length, by which its products are multiplied: it is short where its regions differ
    even:float = 0 # Power of the number of centroids of an image, by which its entries are divided
    learned:str = "" # Weights fitted to other sentences: `profile` of how near a centroid is, a factor of each of the `centroids`, or `both`

LIBRARY = Weights(pooled=IndexConfig().merged_for_centroids)
IDEAS = {"as it was": {}, "128 centroids a word": {"keep": 128}, "32 centroids a word": {"keep": 32}, "16 centroids a word": {"keep": 16},
         "weights squared": {"power": 2}, "weights to the power 1.5": {"power": 1.5}, "twice the centroids": {"more": 2}, "four times the centroids": {"more": 4},
         "image weights: cosine of region and centroid": {"stored": "cosine"}, "image weights: closeness": {"stored": "close"}, "image weights: number of regions": {"stored": "count"},
         "two centroids a region": {"nearest": 2}, "rare centroids weigh more": {"rare": True}, "stop-words left out": {"skip": True},
         "weights to the power 0.7": {"power": .7}, "regions pooled to 18": {"pooled": 18}, "regions pooled to 12": {"pooled": 12}}
IDEAS |= {"pooled to 12, "+name: {"pooled": 12, **changes} for name,changes in {
    "stop-words left out": {"skip": True}, "two centroids a vector": {"nearest": 2}, "twice the centroids": {"more": 2}, "four times the centroids": {"more": 4},
    "directions of the centroids": {"norm": -1}, "long centroids weigh more": {"norm": 1}, "entries divided by the root of their number": {"even": .5},
    "profile learned": {"learned": "profile"}, "centroids' factors learned": {"learned": "centroids"}, "both learned": {"learned": "both"}}.items()}

class FirstStage:
    "Ranks of images by their centroids alone; what it learns is kept for the next idea."
    def __init__(self, images, seed, others=None):
        self.images,self.seed,self.others,self.learned,self.coded,self.fitted = images,seed,others,{},{},{}

    def centroids(self, more, pooled):
        "Images, pooled or not, and centroids of their regions."
        if (more,pooled) not in self.learned:
            images = self.images
            if pooled: images = Packed.from_sets([torch.from_numpy(merge_regions(images[i].numpy(), pooled)) for i in range(len(images))])
            k = int(more*default_centroid_count(len(images.values)))
            rows = torch.randperm(len(images.values), generator=torch.Generator().manual_seed(self.seed))[:max(2**16, 8*k)]
            self.learned[more,pooled] = images,learn_centroids(images.values[rows], k, self.seed)
        return self.learned[more,pooled]

    def codes(self, w):
        "Nearest centroids of the regions and their distances, `(regions, nearest)`."
        key = w.more,w.pooled,w.nearest
        if key not in self.coded:
            images,centroids = self.centroids(w.more, w.pooled)
            self.coded[key] = nearest_rows(images.values, centroids, w.nearest)
        return self.coded[key]

    def vectors(self, w):
        "Sparse vectors of the images, `(images, centroids)`."
        (images,centroids),(codes,distances) = self.centroids(w.more, w.pooled),self.codes(w)
        owner = np.repeat(np.arange(len(images)), images.lengths.numpy())
        pairs,place = np.unique((owner[:,None]*len(centroids) + codes).ravel(), return_inverse=True)
        values,distance = np.zeros(len(pairs), np.float32),distances.ravel()
        if w.stored == "count": np.add.at(values, place, 1)
        elif w.stored == "close": np.maximum.at(values, place, (1 - distance/2/centroids.residual).clip(.05))
        elif w.stored == "cosine":
            norms = centroids.vectors.norm(dim=1).numpy()[codes].ravel()
            np.maximum.at(values, place, (1 + norms**2 - distance**2)/2/norms)
        else: values[:] = 1
        if w.even: values /= np.bincount(pairs//len(centroids), minlength=len(images))[pairs//len(centroids)]**w.even
        return csr_matrix((values, np.divmod(pairs, len(centroids))), (len(images),len(centroids)))

    def sentence(self, words, w, centroids, share):
        "The weights of a sentence, `(centroids,)`."
        products = centroids.vectors @ words.T
        if not products.numel(): return torch.zeros(len(centroids))
        if w.norm: products *= centroids.vectors.norm(dim=1, keepdim=True)**w.norm
        threshold,greatest = products.topk(min(w.keep, len(centroids)), 0).values[-1],products.amax(0)
        weights,greatest = (products - threshold).clamp(min=0),(greatest - threshold).clamp(min=1e-6)
        if w.learned:
            shares,factors = self.fit(w, centroids, share)
            return (self.profile(weights, greatest) @ shares)*factors
        if w.power != 1: weights = weights**w.power*greatest**(1 - w.power)
        weights = weights.sum(1)
        return weights*torch.from_numpy(np.log(1/share)) if w.rare else weights

    def profile(self, weights, greatest):
        "Powers of how near each centroid is to each word, summed over the words, `(centroids, 5)`."
        return torch.stack([(weights**power*greatest**(1 - power)).sum(1) for power in (.5,1,1.5,2,3)], 1)

    def fit(self, w, centroids, share):
        "Shares of the profile and factors of the centroids that put the exact ten of other sentences first."
        if w not in self.fitted:
            stored = self.vectors(w)
            matrix = torch.sparse_csr_tensor(torch.from_numpy(stored.indptr), torch.from_numpy(stored.indices), torch.from_numpy(stored.data), stored.shape)
            profiles = []
            for i in range(len(self.others)):
                products = centroids.vectors @ self.others[i].T
                threshold,greatest = products.topk(min(w.keep, len(centroids)), 0).values[-1],products.amax(0)
                profiles.append(self.profile((products - threshold).clamp(min=0), (greatest - threshold).clamp(min=1e-6)))
            profiles,best = torch.stack(profiles),torch.from_numpy(exact_rows(self.images, self.others))
            scale = float((matrix @ (profiles[:,:,1].T)).std())
            shares,logs = torch.tensor([0.,1,0,0,0], requires_grad="centroids" not in w.learned),torch.zeros(len(centroids), requires_grad=w.learned != "profile")
            steps = torch.optim.Adam([{"params": [v], "lr": rate} for v,rate in ((shares,.02),(logs,.02)) if v.requires_grad])
            for i in range(150):
                rows = torch.randperm(len(best), generator=torch.Generator().manual_seed(i))[:32]
                scores = (matrix @ ((profiles[rows] @ shares)*logs.exp()).T)/scale
                loss = -scores.log_softmax(0).gather(0, best[rows].T).mean() + .01*(logs**2).mean()
                steps.zero_grad()
                loss.backward()
                steps.step()
            self.fitted[w] = shares.detach(),logs.detach().exp()
            print(w.learned, shares.tolist(), logs.std().item(), loss.item(), file=sys.stderr, flush=True)
        return self.fitted[w]

    def ranks(self, sentences, exact, w, words=None):
        "Rank of each of the exact ten, from 1; images that a sentence looks at, one by one; and numbers of an image."
        stored,centroids = self.vectors(w),self.centroids(w.more, w.pooled)[1]
        ranks,touched = [],[]
        images_of = np.bincount(stored.indices, minlength=len(centroids))
        share = ((images_of + 1)/(len(self.images) + 1)).astype(np.float32)
        for i in range(len(sentences)):
            vectors = sentences[i]
            if w.skip: vectors = vectors[[word not in STOP_WORDS for word in words[i]]]
            weights = self.sentence(vectors, w, centroids, share).numpy()
            touched.append(images_of[weights > 0].sum())
            order = np.argsort(-(stored @ weights), kind="stable")
            rank = np.empty(len(order), int)
            rank[order] = np.arange(1, len(order) + 1)
            ranks += rank[exact[i]].tolist()
        return ranks,np.mean(touched),stored.nnz/len(self.images)

def nearest_rows(vectors, centroids, count, block=1024):
    "Rows of the nearest centroids `(n, count)`, and the distances."
    half_norms,rows,distances = (centroids.vectors*centroids.vectors).sum(1)/-2,[],[]
    for some in vectors.split(block):
        scores,squares = torch.addmm(half_norms, some, centroids.vectors.T).numpy(),(some*some).sum(1).numpy()
        place,best,far = np.arange(len(some)),[],[]
        for _ in range(count):
            best.append(scores.argmax(1)) # numpy's argmax is ten times as fast as torch's topk
            far.append(np.sqrt((squares - 2*scores[place,best[-1]]).clip(0)))
            scores[place,best[-1]] = -np.inf
        rows.append(np.stack(best, 1))
        distances.append(np.stack(far, 1))
    return np.concatenate(rows),np.concatenate(distances)

SHARES,AIM = (90,95,99),1_000_000 # Shares of the exact ten, and images of a projection

def exact_rows(images, sentences): return similarity(images, sentences).topk(10, 0).indices.T.numpy()

def rounded(images): return Packed(F.normalize(images.values.half().float(), dim=1), images.offsets)

def ideas(images, sentences, words, others, args):
    "Candidates that each idea needs for a share of the exact ten."
    stored,rows = rounded(images),[]
    exact,stage = exact_rows(stored, sentences),FirstStage(stored, args.seed, others)
    for name in args.ideas:
        changes = IDEAS.get(name)
        if changes is None: changes = {k: type(getattr(Weights(), k))(v) for k,v in (change.split("=") for change in name.split(","))}
        if changes.get("skip") and not words: continue
        ranks,touched,numbers = stage.ranks(sentences, exact, Weights(**changes), words)
        centroids = stage.centroids(Weights(**changes).more, Weights(**changes).pooled)[1]
        rows.append([name, f"{len(centroids):,}", *[f"{v:,.0f}" for v in np.percentile(ranks, SHARES)], f"{touched:,.0f}", f"{numbers:.1f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(["first stage","centroids",*[f"candidates for {s} %" for s in SHARES],"entries read","numbers an image"], rows) + "\n", flush=True)

def growth(images, sentences, args):
    "Candidates needed for a share of the exact ten, at several sizes, and the power with which they grow."
    stored,rows,needed = rounded(images),[],[]
    sizes = args.sizes or [n for n in (len(images)//8, len(images)//4, len(images)//2, len(images)) if n > 20]
    for n in sizes:
        few = stored[:n]
        stage = FirstStage(few, args.seed)
        ranks,_,_ = stage.ranks(sentences, exact_rows(few, sentences), LIBRARY)
        needed.append(np.percentile(ranks, SHARES))
        rows.append([f"{n:,}", f"{len(stage.centroids(1, LIBRARY.pooled)[1]):,}", *[f"{v:,.0f}" for v in needed[-1]]])
    powers = [np.polyfit(np.log(sizes), np.log(v), 1)[0] for v in np.array(needed).T] if len(sizes) > 1 else [0]*3
    rows.append(["grows with the power","", *[f"{v:.2f}" for v in powers]])
    print(markdown_table(["images","centroids",*[f"candidates for {s} %" for s in SHARES]], rows) + "\n", flush=True)
    if not args.json: return
    grown = {"images": sizes[-1], "needed": needed[-1][-1], "power": powers[-1], "vectors": LIBRARY.pooled or args.regions}
    write_json(args.json, read_json(args.json) | {"growth": grown})
    project(args.json)

# stages that the engine does not offer

class Scan:
    "MaxSim over centroids instead of regions, of every image: a word takes the best of an image's centroids, as in PLAID (Santhanam et al., 2022), without lists."
    lanes = 16 # Words whose cosines, as bytes, are one record
    def __init__(self, images, centroids, codes):
        "Codes `(regions,)` become a table of a fixed number for each image; shorter images repeat their first one."
        longest,lengths = int(images.lengths.max()),images.lengths.numpy()
        place = np.minimum(np.arange(longest), lengths[:,None] - 1)
        self.centroids,self.codes = centroids,codes[images.offsets[:-1].numpy()[:,None] + place].astype(np.uint16).T.copy()

    def scores(self, words, block=8192):
        "Similarity of every image with the words of a sentence, `(images,)`."
        cosines = (self.centroids.vectors @ words.T).numpy()
        least,most = cosines.min(),cosines.max()
        tables = np.zeros((-(-len(words)//self.lanes),len(cosines),self.lanes), np.uint8)
        levels = ((cosines - least)/max(most - least, 1e-9)*255).round().astype(np.uint8)
        for j,column in enumerate(levels.T): tables[j//self.lanes,:,j%self.lanes] = column
        scores = np.zeros(self.codes.shape[1], np.int32)
        for records in tables.view(np.complex128)[...,0]: # 16 bytes are taken at a time
            for first in range(0, len(scores), block):
                codes = self.codes[:,first:first+block]
                best = records.take(codes[0]).view(np.uint8)
                for some in codes[1:]: np.maximum(best, records.take(some).view(np.uint8), out=best)
                scores[first:first+block] += best.reshape(-1, self.lanes).sum(1, dtype=np.int32)
        return scores

def ranks_by(scores, exact):
    "Rank of each of the exact ten, from 1, by the scores of all images."
    rank = np.empty(len(scores), int)
    rank[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return rank[exact].tolist()

def scan(images, sentences, args):
    "Candidates that a scan of all images needs, by the side of the library's first stage, and how long it takes."
    stored,rows,needed = rounded(images),[],{}
    sizes = args.sizes or [len(images)//4,len(images)//2,len(images)]
    for n in sizes:
        few = stored[:n]
        exact,stage = exact_rows(few, sentences),FirstStage(few, args.seed)
        ranks,_,_ = stage.ranks(sentences, exact, LIBRARY)
        found = {"lists of centroids (the library)": (ranks,"",len(stage.centroids(1, LIBRARY.pooled)[1]))}
        for more in (1,2):
            w = replace(LIBRARY, more=more)
            (coded,centroids),(codes,_) = stage.centroids(more, w.pooled),stage.codes(w)
            compared,ranks,cpu = Scan(coded, centroids, codes[:,0]),[],[]
            for i in range(len(sentences)):
                start = time.process_time()
                scores = compared.scores(sentences[i])
                cpu.append(1000*(time.process_time() - start))
                ranks += ranks_by(scores, exact[i])
            found[f"scan, centroids x {more}"] = ranks,np.median(cpu),len(centroids)
        for name,(ranks,cpu,count) in found.items():
            needed.setdefault(name, []).append(np.percentile(ranks, SHARES))
            rows.append([f"{n:,}", name, f"{count:,}", *[f"{v:,.0f}" for v in needed[name][-1]], f"{cpu:.1f}" if cpu else ""])
            print(rows[-1], file=sys.stderr, flush=True)
    for name,values in needed.items():
        powers = [np.polyfit(np.log(sizes), np.log(v), 1)[0] for v in np.array(values).T]
        rows.append(["grows with the power", name, "", *[f"{v:.2f}" for v in powers], ""])
        times = AIM/sizes[-1] # as many images
        cpu = found[name][1]
        rows.append([f"{AIM:,}, projected", name, "", *[f"{v*times**power:,.0f}" for v,power in zip(values[-1], powers)], f"{cpu*times:.0f}" if cpu else ""])
    print(markdown_table(["images","first stage","centroids",*[f"candidates for {s} %" for s in SHARES],"CPU ms"], rows) + "\n", flush=True)

def product(images, sentences, args):
    "Images that must be compared again in half precision, when all are compared by product-quantised regions."
    stored,rows = rounded(images),[]
    exact = exact_rows(stored, sentences)
    starts = stored.offsets[:-1].numpy()
    sample = stored.values[torch.randperm(len(stored.values), generator=torch.Generator().manual_seed(args.seed))[:2**15]]
    for pieces in (4,8,16):
        width,codes,books = stored.dim//pieces,[],[]
        for part in range(pieces):
            own = slice(part*width, (part + 1)*width)
            books.append(learn_centroids(sample[:,own].contiguous(), 256, args.seed).vectors)
            codes.append(nearest_rows(stored.values[:,own].contiguous(), Centroids(books[-1], 0.), 1)[0][:,0])
        ranks = []
        for i in range(len(sentences)):
            cosines = sum((book @ sentences[i][:,part*width:(part + 1)*width].T).numpy()[codes[part]] for part,book in enumerate(books))
            ranks += ranks_by(np.maximum.reduceat(cosines, starts).sum(1), exact[i])
        bytes_image = pieces*len(stored.values)/len(stored)
        rows.append([f"{pieces} bytes a region", *[f"{v:,.0f}" for v in np.percentile(ranks, SHARES)], f"{bytes_image:,.0f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    rows.append(["half precision", *["10"]*3, f"{2*stored.dim*len(stored.values)/len(stored):,.0f}"])
    print(markdown_table(["",*[f"compared again for {s} %" for s in SHARES],"bytes an image"], rows) + "\n", flush=True)

def scale(images, sentences, args, folder):
    "What `lab/costs.py` computes from indexes of 1,000 and 4,000 images, beside the rows of two stages that `measure` wrote."
    measured,rows = measure_costs(as_encoded(images[:4000]), sentences[:20], folder/"scale"),[]
    for row in read_json(args.json)["rows"]:
        if row["way"] != "two stages": continue
        candidates = candidates_of(row)
        computed = cost(row["images"], measured, candidates)
        rows.append([f"{row['images']:,}", f"{candidates:,}", f"{computed.shard_ms:.1f}", f"{row['CPU ms']:.1f}", f"{measured.bytes_per_image:,.0f}", f"{row['bytes an image']:,}"])
    print(markdown_table(["images","candidates","CPU ms, computed","measured","bytes an image, computed","measured"], rows) + "\n", flush=True)

def candidates_of(row): return int(row["what"].split()[-2].replace(",", ""))

def project(path):
    "What a search of a million images would cost, by the rows of `measure` and the candidates for 99 % of `growth`; the aim beside it."
    written,rows = read_json(path),[]
    points,grown = [row for row in written["rows"] if row["way"] in WAYS],written["growth"]
    count = grown["needed"]*(AIM/grown["images"])**grown["power"]
    def of_search(way, images, candidates):
        "What a search does: something fixed and some candidates, both of its way, and the lists of centroids, which all ways read alike."
        own = np.repeat(np.array(list(WAYS)) == way, 2)
        return [*np.where(own, [1,candidates]*len(WAYS), 0),images/default_centroid_count(images*grown["vectors"])]
    searches = [of_search(row["way"], row["images"], candidates_of(row)) for row in points]
    costs = nnls(np.array(searches), np.array([row["CPU ms"] for row in points]))[0]
    for i,way in enumerate(WAYS):
        size = max((row for row in points if row["way"] == way), key=lambda row: row["images"])["bytes an image"]
        cpu = costs @ of_search(way, AIM, count)
        rows.append([way, f"{costs[2*i]:.1f}", f"{costs[-1]:.3f}", f"{1000*costs[2*i + 1]:.2f}", f"{count:,.0f}", f"{cpu:.0f}", f"{size*AIM/1e9:.1f}"])
    rows.append(["the aim", "", "", "", "", "100 (50 ms on two cores)", "10"])
    print(f"{AIM:,} images, projected\n\n" + markdown_table(["","fixed CPU ms","CPU ms for each image in a list","CPU microseconds a candidate","candidates for 99 %","CPU ms","GB on disk"], rows) + "\n", flush=True)

# the engine

class Quantised(EdgeBackend):
    "A folder whose regions are quantised in another way than to 8 bits."
    def __init__(self, folder, quantization):
        self.quantization = quantization
        super().__init__(folder)

    def create(self, layout):
        with patch.object(qdrant_edge, "ScalarQuantizationConfig", lambda kind: self.quantization): super().create(layout)

def engine(images, sentences, args, folder):
    "Recall and time of what the engine can do between the first stage and the last."
    exact,rows = exact_names(images, sentences),[]
    ways = {"half precision": (IndexConfig(centroid_count=args.centroids),open_edge)}
    for name,config in (("int8",None),("4 bits (TurboQuant)",qdrant_edge.TurboQuantQuantizationConfig(bits=qdrant_edge.TurboQuantBitSize.Bits4)),
                        ("1 bit",qdrant_edge.BinaryQuantizationConfig())):
        backend = open_edge if config is None else partial(Quantised, quantization=config)
        ways[f"{name}, the best 100 again"] = IndexConfig(centroid_count=args.centroids, int8=True),backend
    for i,(name,(config,open_backend)) in enumerate(ways.items()):
        index = Index(None, config, open_backend(folder/f"engine-{i}"))
        seconds = fill(index, images)
        print(name, round(seconds), index.backend.shard.info(), file=sys.stderr, flush=True)
        ask(index, sentences[:5], 1000) # a warm-up
        for n in args.candidates: rows.append([*row(f"{name}, {n:,} candidates", *ask(index, sentences, n), exact), f"{index.backend.bytes()/len(images):,.0f}"])
        index.close()
    for pooled in (12,18):
        index = build(folder/f"pooled-{pooled}", images, IndexConfig(centroid_count=args.centroids, merged_count=pooled))
        for n in args.candidates: rows.append([*row(f"pooled to {pooled} between, {n:,} candidates", *ask(index, sentences, n), exact), f"{index.backend.bytes()/len(images):,.0f}"])
        index.close()
    print(markdown_table([*HEADER,"bytes an image"], rows) + "\n", flush=True)

def defaults(images, sentences, others, args, folder):
    "Recall with the number of candidates that an index chooses by its size, and with what `calibrate` measures by other captions."
    rows = []
    for n in args.sizes or [len(images)]:
        index = build(folder/f"default-{n}", images[:n], IndexConfig(centroid_count=args.centroids))
        exact = exact_names(images[:n], sentences)
        for count in (0,50,100,200):
            start = time.process_time()
            if count: index.calibrate(others[:count])
            seconds = time.process_time() - start
            chosen = index.layout.centroid_state.calibrated_candidates if count else index.candidates
            names,_,cpu = ask(index, sentences, chosen)
            how = f"calibrated by {count} captions" if count else "by its size"
            rows.append([f"{n:,}", how, f"{chosen:,}", *recalls(names, exact), f"{np.median(cpu):.1f}", f"{seconds:.0f}" if count else ""])
            print(rows[-1], file=sys.stderr, flush=True)
        index.close()
    print(markdown_table(["images","candidates","","R@1 %","R@10 %","CPU ms","CPU s to calibrate"], rows) + "\n", flush=True)

def poolings(images, sentences, args, folder):
    "What a pooling costs that is not MaxSim."
    index = build(folder/"poolings", images, IndexConfig(centroid_count=args.centroids))
    rows = []
    for count in (1,20):
        for pooling in ("mrsw","symm"):
            some = sentences[:count]
            index.search(some, candidates=1000, pooling=pooling)
            start,cpu_start = time.perf_counter(),time.process_time()
            for _ in range(3): index.search(some, candidates=1000, pooling=pooling)
            cpu,wall = (1000*v/3/count for v in (time.process_time() - cpu_start,time.perf_counter() - start))
            rows.append([pooling, count, f"{cpu:.0f}", f"{wall:.0f}"])
    print(markdown_table(["1,000 candidates","sentences at once","CPU ms a sentence","wall ms"], rows) + "\n", flush=True)
    index.close()

def strangers(images, sentences, args, folder):
    "Recall before and after images of another kind are added, and after a rebuild."
    half = len(images)//2
    turn = torch.linalg.qr(torch.randn(images.dim, images.dim, generator=torch.Generator().manual_seed(args.seed)))[0]
    index = Index.open(folder/"strangers", config=IndexConfig(centroid_count=args.centroids))
    index.add(as_encoded(images[:half]), batch_size=512)
    own,rows = images[half:],[]
    turned = Packed(own.values @ turn, own.offsets)
    asked = Packed(sentences.values @ turn, sentences.offsets)
    every = Packed.cat([images[:half],turned])
    def measured(what, parts, query):
        exact = exact_names(parts, query)
        names,wall,cpu = ask(index, query, 1000)
        rows.append([what, f"{index.drift:.2f}", *recalls(names, exact), f"{np.median(cpu):.1f}"])
    measured("images of one kind, their sentences", images[:half], sentences)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index.add(as_encoded(every), batch_size=512) # the first half is there already
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
    p.add_argument("--centroids", type=int, default=0, help="as of IndexConfig")
    p.add_argument("--candidates", type=int, nargs="+", default=[100,300,1000,3000])
    p.add_argument("--parts", nargs="+", default=["measure","growth","strangers"], choices=["measure","growth","strangers","ideas","engine","poolings","scan","product","defaults","scale"])
    p.add_argument("--ideas", nargs="*", default=list(IDEAS), help="names of `IDEAS`, or fields of `Weights` such as keep=32,power=2")
    p.add_argument("--json", default="", help="file for the rows of `measure`; a figure of them stands beside it, and `growth` projects from them")
    p.add_argument("--draw", default="", help="only draw the figure of this file again, and print its projection")
    p.add_argument("--sizes", type=int, nargs="*", default=[], help="of `measure` and `growth`; by default all images, and halves of them")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = p.parse_args()
    if args.quick:
        parts = [*args.parts,"scan","product","defaults"]
        vars(args).update(images=300, dim=32, latent=40, sentences=6, candidates=[10,100], collection=[], worlds="", parts=parts)
    return args

def main():
    args = arguments()
    if args.draw: return draw(args.draw)
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    warnings.filterwarnings("ignore", "Sparse")
    images,sentences,words,others = scenes(args) if args.collection or args.worlds else synthetic(args)
    names = ", ".join(Path(folder).name for folder in args.collection) or "drawn scenes"
    what = f"{names}, encoded by {Path(args.run).name}" if args.collection or args.worlds else "synthetic vectors"
    print(f"# Search\n\n{machine()}; seed {args.seed}\n\n{len(images):,} images, {what}, {len(images.values)/len(images):.1f} regions of {images.dim} numbers each; "
          f"{len(sentences)} sentences of {sentences.lengths.float().mean():.1f} words\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if "measure" in args.parts: measure(images, sentences, args, Path(folder))
        if "growth" in args.parts: growth(images, sentences, args)
        if "scale" in args.parts: scale(images, sentences, args, Path(folder))
        if "ideas" in args.parts: ideas(images, sentences, words, others, args)
        if "engine" in args.parts: engine(images, sentences, args, Path(folder))
        if "scan" in args.parts: scan(images, sentences, args)
        if "product" in args.parts: product(images, sentences, args)
        if "defaults" in args.parts: defaults(images, sentences, others, args, Path(folder))
        if "poolings" in args.parts: poolings(images, sentences, args, Path(folder))
        if "strangers" in args.parts: strangers(images, sentences, args, Path(folder))

if __name__ == "__main__": main()
