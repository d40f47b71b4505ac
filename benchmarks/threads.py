"""What a training step costs while other processes use the cores, with the spinning of OpenMP's threads as `import teran_nb` sets it, and as torch leaves it.

`python benchmarks/threads.py` prints a table in markdown (three minutes). Every cell is a process of its own, because OpenMP reads its settings once; the cells
take turns, and the median of all rounds is shown. `--quick` takes seconds and shows only that it runs. The step is that of the preset `scenes`: 64 images with
a caption each, forward and backward.
"""
import argparse, os, statistics, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPINS = {"as torch leaves it": "", "as teran_nb sets it": "teran_nb"}
BUSY = [sys.executable, "-c", "while True: pass"]


def step_ms(seconds):
    "Milliseconds of a training step, printed."
    import time
    from dataclasses import replace

    import torch
    from teran_nb.core.processes import seed_everything
    from teran_nb.data.features import Regions
    from teran_nb.training.recipe import recipe
    from teran_nb.model.losses import triplet
    from teran_nb.model.network import Network
    from teran_nb.model.regions import region_batch

    seed_everything(0)
    network = recipe().network
    network = replace(network, regions=replace(network.regions, features=383))
    texts = ["a red kite flies above the small house near two dogs"]*64
    model = Network.build(network, texts)
    regions = [Regions(f"im{i}", torch.randn(25, 383).numpy(), torch.rand(25, 4).sort().values.numpy(), (1,1)) for i in range(64)]
    images = region_batch(regions)
    captions = model.text.tokenize(texts).padded()
    image_of = torch.arange(64)
    taken = []
    start = time.perf_counter()
    while not taken or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        triplet(model.similarity(*model(images, captions)), image_of, .2).backward()
        taken.append(1000*(time.perf_counter() - begin))
    print(statistics.median(taken)) # noqa: T201

def measured(spin, threads, busy, seconds):
    "The milliseconds that a fresh process prints, beside some busy ones."
    first = f"import {spin}" if spin else "import torch"
    code = f"{first}; import sys; sys.path.insert(0, 'benchmarks'); from threads import step_ms; step_ms({seconds})"
    env = {k: v for k,v in os.environ.items() if k not in ("GOMP_SPINCOUNT","OMP_WAIT_POLICY")}
    env |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    others = [subprocess.Popen(BUSY) for _ in range(busy)]
    try: return float(subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    finally:
        for other in others: other.kill()

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--busy", type=int, nargs="+", default=[0,2], help="busy processes beside the training")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    seconds = 1 if args.quick else 8
    numbers = (2,) if args.quick else (1,2)
    if args.quick: args.rounds,args.busy = 1,[0]
    from common import machine

    from teran_nb.core.show import markdown_table
    taken = {}
    for _ in range(args.rounds):
        for busy in args.busy:
            for threads in numbers:
                for name,spin in SPINS.items(): taken.setdefault((threads,name), {}).setdefault(busy, []).append(measured(spin, threads, busy, seconds))
    rows = [[threads, name, *(f"{statistics.median(by_busy[b]):.0f}" for b in args.busy)] for (threads,name),by_busy in taken.items()]
    print(f"{machine()}; milliseconds of a training step of 64 pairs, median of {args.rounds} rounds\n")
    print(markdown_table(["threads","OpenMP's spinning",*(f"{b} busy processes" for b in args.busy)], rows))

if __name__ == "__main__": main()
