"""What the benchmarks share: the machine they ran on, a clock, the resident set, and packed random vectors."""
import os, platform, time
from pathlib import Path

import torch

from teran_nb.core.packed import Packed


def machine():
    "Processor, cores, versions and load, for the line above a table."
    info = Path("/proc/cpuinfo")
    names = [l.split(":")[1].strip() for l in info.read_text().splitlines() if l.startswith("model name")] if info.exists() else []
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
