"""Indexes that are compared with ours, each run by the Python that has it: `search.py` calls `PYTHON other_indexes.py FOLDER INDEX`.

* `centroids`: this project's former first stage, sparse lists of centroids (commit a8a5137b)
* `tachiom`: tachiom 0.4, inverted lists of centroids and product-quantised regions (Martinico et al., SIGIR 2026)

The folder has the images' vectors and the sentences' (`regions.npy`, `words.npy`), and how many each has (`regions of.npy`, `words of.npy`). What
was found is written there as `found.json`.
"""
import json, os, sys, time
from functools import partial
from pathlib import Path

import numpy as np

class CentroidIndex:
    ways = {f"{n:,} candidates": {"candidates": n} for n in (300,1000,3000,12_000)}
    def __init__(self, path, regions, counts):
        import torch
        from teran_nb.core.packed import Packed
        from teran_nb.model.encoder import Encoded
        from teran_nb.search.index import Index
        def packed(values, counts): return Packed(torch.from_numpy(values.astype(np.float32)), torch.tensor([0,*counts]).cumsum(0))
        self.packed = packed
        self.index = Index.open(path)
        self.index.add(Encoded(torch.zeros(len(counts), 1), packed(regions, counts), [str(i) for i in range(len(counts))]), batch_size=512)
        self.index.optimize()
    def search(self, words, candidates):
        return [int(name) for name in self.index.search(self.packed(words, [len(words)]), 10, candidates=candidates).names[0]]

class TachiomIndex:
    ways = {"500 candidates": {}, "2,000 candidates": {"k_docs_to_score": 2000, "k_centroids": 50, "ef_search": 100, "alpha": None}} # as it comes, and wider
    def __init__(self, path, regions, counts):
        from tachiom import Tachiom
        no_tokens = np.zeros(len(regions), np.uint32) # its clusters are those of one token
        self.index = Tachiom.build_from_arrays(np.ascontiguousarray(regions).view(np.uint16), no_tokens, counts.astype(np.int32))
        self.index.save(str(path))
    def search(self, words, **options): return [int(i) for i in self.index.search(words, 10, **options)[1]]

INDEXES = {"centroids": CentroidIndex, "tachiom": TachiomIndex}

def bytes_of(path):
    "What a file or a folder takes on the disk."
    return sum(512*p.stat().st_blocks for p in [path,*path.rglob("*")] if p.is_file()) # an engine's files are partly holes

def timed_search(search, sentences):
    "Hits, wall and CPU milliseconds of each sentence."
    hits,wall,cpu = [],[],[]
    for sentence in sentences: search(sentence) # once before the clock starts, so that the files were read
    for sentence in sentences:
        start,cpu_start = time.perf_counter(),time.process_time()
        hits.append(search(sentence))
        wall.append(1000*(time.perf_counter() - start))
        cpu.append(1000*(time.process_time() - cpu_start))
    return hits,wall,cpu

def main(folder, name):
    folder = Path(folder)
    regions,counts,words,word_counts = (np.load(folder/f"{part}.npy") for part in ("regions","regions of","words","words of"))
    sentences = np.split(words, np.cumsum(word_counts)[:-1])
    start = time.perf_counter()
    index = INDEXES[name](folder/name, regions, counts)
    build = time.perf_counter() - start
    ways = {way: options for way,options in index.ways.items() if options.get("candidates", 0) < len(counts)}
    found = {f"{name}, {way}": timed_search(partial(index.search, **options), sentences) for way,options in ways.items()}
    resident = next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))/1000
    result = {"build": build, "bytes": bytes_of(folder/name), "resident": resident, "found": found}
    unfinished = folder/"found.json.tmp"
    unfinished.write_text(json.dumps(result))
    os.replace(unfinished, folder/"found.json")

if __name__ == "__main__": main(*sys.argv[1:])
