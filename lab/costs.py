"""What an index costs in bytes, memory and milliseconds: measured on two small ones, computed for others. `benchmarks/search.py --parts scale` compares."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from teran_nb.core.files import user_path
from teran_nb.model.encoder import Encoded
from teran_nb.search.first_stage import candidates_for
from teran_nb.search.index import Index


@dataclass(frozen=True)
class SearchCosts:
    "What an index of some model costs, measured on this machine."
    bytes_per_image:float  # On disk
    vector_bytes_per_image:float  # Those of them that are region vectors
    build_seconds_per_image:float  # CPU seconds to add an image
    regions_per_image:float  # Mean number
    ms_fixed:float  # CPU milliseconds of every search
    ms_per_list_entry:float  # CPU milliseconds of a search for each image in the list of a centroid
    ms_per_candidate:float  # CPU milliseconds of a search for each candidate

def measure_costs(
    images:Encoded,  # Encoded images, at least as many as the largest size
    sentences:Encoded,  # A few encoded sentences
    folder:str|Path,  # Where the indexes are made, and removed again
    sizes:tuple[int,int]=(1000,4000),  # Images of the two indexes
    candidates:tuple[int,int]=(50,800),  # Candidates of the searches
) -> SearchCosts:
    "Fill two indexes by Qdrant Edge and search them."
    if len(images.names) < max(sizes):
        raise ValueError(f"{len(images.names):,} images for indexes of {sizes}; give more images, or smaller sizes")
    lengths = images.parts.lengths.double()
    regions = lengths.mean().item()
    searches = []  # what each search does: one fixed part, list entries, candidates
    milliseconds = []
    index_bytes = []
    build_seconds = []
    place = user_path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        for n in sizes:
            index = Index(None, Path(temporary)/f"index-{n}")
            start = time.process_time()
            index.add(images[:n])
            index.optimize()
            build_seconds.append(time.process_time() - start)
            index_bytes.append(index.backend.bytes())
            list_length = n*regions/len(index.backend.first)
            for count in candidates:
                searches.append([1,list_length,count])
                milliseconds.append(_median_milliseconds(index, sentences, count))
            index.close()
    fixed,per_list_entry,per_candidate = nnls(np.array(searches, float), np.array(milliseconds))[0].tolist()
    vector_bytes = lengths.mean().item()*images.parts.dim*2
    bytes_per_image = (index_bytes[1] - index_bytes[0])/(sizes[1] - sizes[0])
    build_seconds_per_image = build_seconds[1]/sizes[1]
    return SearchCosts(bytes_per_image, vector_bytes, build_seconds_per_image, regions, fixed, per_list_entry, per_candidate)

def _median_milliseconds(index, sentences, candidates):
    "CPU milliseconds of a search for one sentence."
    index.candidates = candidates
    index.search(sentences[0])  # a warm-up
    milliseconds = []
    for i in range(len(sentences)):
        start = time.process_time()
        index.search(sentences[i])
        milliseconds.append(1000*(time.process_time() - start))
    return statistics.median(milliseconds)


@dataclass(frozen=True)
class IndexCost:
    "What an index of some size costs."
    images:int  # Of the index
    shards:int  # Of a cluster
    candidates:int  # Of a search
    disk_gb:float  # GB on disk, all copies
    memory_gb:float  # GB of memory that each node should have
    fill_hours:float  # Hours to fill it
    shard_ms:float  # CPU milliseconds of one shard for a search

def cost(
    images:int,  # Of the index
    measured:SearchCosts,  # By `measure_costs`
    candidates:int=0,  # Of a search; 0: `candidates_for` the images
    shards:int=1,  # Of a cluster; each searches its part at the same time, with the full number of candidates
    replicas:int=1,  # Copies
    processes:int=1,  # Processes that encode and add, each on a core or a GPU of its own
    encode:float=0,  # Seconds of one process for an image, measured by `benchmarks/encode.py`; 0: already encoded
) -> IndexCost:
    "What an index of so many images costs, extrapolated from measured costs."
    candidates = candidates or candidates_for(images)
    regions = images*measured.regions_per_image
    list_length = regions/max(1, min(2**13, int(8*regions**.5)))
    compared = min(candidates, images//shards)  # every shard proposes and compares the full number
    ms_per_shard = measured.ms_fixed + measured.ms_per_list_entry*list_length/shards + measured.ms_per_candidate*compared
    memory_bytes = images*(measured.bytes_per_image - measured.vector_bytes_per_image)*replicas/shards
    writers = processes if shards > 1 else 1  # one process fills an index in a folder
    seconds_per_image = measured.build_seconds_per_image/writers + encode/processes
    return IndexCost(
        images, shards, candidates, disk_gb=images*measured.bytes_per_image*replicas/1e9, memory_gb=memory_bytes/1e9,
        fill_hours=images*seconds_per_image/3600, shard_ms=ms_per_shard)
