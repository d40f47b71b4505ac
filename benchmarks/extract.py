"""Photographs a second of `extract_folder` by windows of EfficientNet-Lite2, beside a naive loop.

`python benchmarks/extract.py [folder]` prints a table in markdown. The naive loop reads one picture at a time, computes its feature map with the channels
first, gives freed memory back to the system, and averages one window after the other. Ours runs in single precision and in bfloat16. Each round runs all
in processes of their own, in turn, with one thread; the ratios are of the best rounds. Without a folder it draws its own pictures.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
from PIL import Image

from teran_nb.core.show import markdown_table
from teran_nb.data.pictures import find_pictures, read_picture
from teran_nb.photos.extraction import extract_folder
from teran_nb.photos.extractors import build_extractor, map_windows

WAYS = "naive", "ours", "ours, bf16", "ours, 288 and 416 pixels"


def draw(folder, count, side):
    "Noisy pictures of our own, as JPEG."
    for i in range(count):
        Image.effect_noise((side, side), 10 + i % 90).convert("RGB").save(folder / f"{i:05}.jpg")


def naive(folder, extractor):
    "The features of each picture, one picture and one window at a time."
    backbone = extractor.backbone
    backbone.model.to(memory_format=torch.contiguous_format)
    weights = map_windows(extractor.grid)[0]
    features = []
    for path in find_pictures(folder).values():
        picture, _ = read_picture(path)
        with torch.inference_mode():
            cells = backbone.model(backbone.preprocessing(picture)[None]).flatten(2)[0]
            features.append(torch.stack([(cells * window).sum(1) for window in weights]).numpy())
    return features


def run(way, folder):
    "Seconds of the clock, CPU seconds, peak MB and the mean feature, of one way."
    torch.set_num_threads(1)
    settings = {"precision": "bf16" if way == "ours, bf16" else "fp32"}
    if way != "ours, 288 and 416 pixels":
        settings["other_sizes"] = []
    extractor = build_extractor("windows", settings, device="cpu")
    start, cpu = time.perf_counter(), time.process_time()
    if way == "naive":
        mean = np.mean([features.mean() for features in naive(folder, extractor)])
    else:
        with tempfile.TemporaryDirectory() as place:
            store = extract_folder(folder, extractor, f"{place}/store", workers=1, show_progress_bar=False)
            mean = np.mean([store[image_id].features.astype(np.float32).mean() for image_id in store.image_ids])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(time.perf_counter() - start, time.process_time() - cpu, memory, mean)


def measured(way, folder):
    "One run in a fresh process."
    command = [sys.executable, __file__, str(folder), "--way", way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [float(value) for value in done.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="photographs; pictures of our own by default")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs")
    parser.add_argument("--quick", action="store_true", help="a few small pictures, only to see that it runs")
    parser.add_argument("--way", choices=WAYS, help="run one way in this process")
    given = parser.parse_args()
    if given.way:
        return run(given.way, given.folder)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(given.folder or place)
        if not given.folder:
            draw(folder, 8 if given.quick else 200, 64 if given.quick else 448)
        count = len(find_pictures(folder))
        rounds = [{way: measured(way, folder) for way in WAYS} for _ in range(1 if given.quick else given.rounds)]
    best = {way: min(each[way] for each in rounds) for way in WAYS}
    rows = [
        (way, f"{count / seconds:.1f}", f"{1e3 * cpu / count:.1f}", f"{memory:,.0f}", f"{best['naive'][0] / seconds:.1f}")
        for way, (seconds, cpu, memory, _) in best.items()]
    for way, tolerance in (("ours", 1e-3), ("ours, bf16", 5e-2)):
        means = best["naive"][3], best[way][3]
        if abs(means[0] - means[1]) > tolerance * means[0]:
            raise SystemExit(f"{way} gives other features: means {means}")
    print(f"{count:,} pictures, {build_extractor('windows', device='cpu').name}, one thread, load {os.getloadavg()[0]:.1f}\n")
    print(markdown_table(["", "pictures/s", "CPU ms each", "peak MB", "times naive"], rows))


if __name__ == "__main__":
    main()
