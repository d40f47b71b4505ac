"""What the benchmarks share: the machine they ran on, a clock, the resident set, packed random vectors, and scenes that are only described."""
import os, platform, time
from pathlib import Path
from random import Random

import numpy as np
import torch

from teran_nb.core.files import atomic
from teran_nb.core.packed import Packed
from teran_nb.core.processes import parallel_map
from teran_nb.scenes.descriptors import DESCRIPTOR_DIM, describe
from teran_nb.scenes.drawing import compose
from teran_nb.data.features import FeatureWriter
from teran_nb.scenes.scenes import SCENES_EXTRACTOR, detector_boxes


def cpu_info():
    "What Linux says of its processors; nothing on other systems."
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""

def machine():
    "Processor, cores, versions and load, for the line above a table."
    names = [l.split(":")[1].strip() for l in cpu_info().splitlines() if l.startswith("model name")]
    return (f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores ({torch.get_num_threads()} threads), "
            f"Python {platform.python_version()}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")

def timed(f):
    "Seconds that a call takes, and what it returns."
    start = time.perf_counter()
    result = f()
    return time.perf_counter() - start,result

def rss(key):
    "Megabytes of one line of /proc/self/status."
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) / 1000

def unit_sets(lengths, dim, seed):
    "Random unit vectors, packed."
    lengths = torch.as_tensor(lengths)
    values = torch.randn(int(lengths.sum()), dim, generator=torch.Generator().manual_seed(seed))
    for part in values.split(4096): part /= part.norm(dim=-1, keepdim=True)
    return Packed(values, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))

def described_scene(number):
    "Features, boxes and size of a scene. Its picture is not kept and it gets no captions, which saves a quarter of the time of `draw_scene`."
    scene = compose(number)
    boxes = detector_boxes(scene, Random(f"boxes {number}"))
    return describe(scene.picture(), boxes).astype(np.float16),boxes,scene.size

def described_scenes(folder, first, count, workers):
    "A store of the features of scenes, made where it is not there."
    if Path(folder).is_dir(): return
    with atomic(folder) as tmp, FeatureWriter(tmp, SCENES_EXTRACTOR, DESCRIPTOR_DIM) as store:
        for i,scene in enumerate(parallel_map("common.described_scene", range(first, first+count), workers)): store.add(f"scene-{first+i}", *scene)
