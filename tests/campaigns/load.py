"""Many threads, many images, a full disk, a folder that cannot be written: everything ends right or with one sentence, and nothing is left behind.

`python tests/campaigns/load.py --seed 0 --cases 24` prints a table and ends with status 1 unless its last four columns are zero. `--cases` is the number of threads.
"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from common import Table, arguments, describe, is_clear
from readers import TINY, toy_collection

from teran_nb.core.files import atomic, make_once, read_json, require_space, save_tensors, write_json
from teran_nb.data.caption_files import read_captions
from teran_nb.data.captions import Captions
from teran_nb.photos.prepare import Sources, chosen_images
from teran_nb.data.features import FeatureWriter, Features
from teran_nb.measure.relevance import rouge_l
from teran_nb.model.network import Network

MILLION = 1_000_000
SECONDS = 20  # to open a million captions; of this process, not of a clock that others share


def threads_write_one_json(folder, n):
    def write(i):
        for _ in range(10):
            write_json(folder / "a.json", {"numbers": [i] * 3000})
            numbers = read_json(folder / "a.json", dict[str, list[int]])["numbers"]
            assert len(numbers) == 3000 and len(set(numbers)) == 1, "half of a file"
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(write, range(n)))
    return {"a.json"}


def threads_make_one_folder(folder, n):
    def make(tmp):
        tmp.mkdir()
        np.save(tmp / "values.npy", np.arange(1000.0))
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(lambda _: make_once(folder / "store", make), range(n)))
    return {"store"}


def threads_one_relevance(folder, n):
    captions = Captions([f"a kite {i}" for i in range(40)], np.repeat(np.arange(20), 2), [f"im{i}" for i in range(20)])
    with ThreadPoolExecutor(n) as pool:
        values = list(pool.map(lambda _: rouge_l(captions, folder, workers=1).values.copy(), range(n)))
    assert all((v == values[0]).all() for v in values)
    return None


def threads_read_one_store(folder, n):
    collection = toy_collection(folder, 24, False)

    def read(i):
        return [collection[(i + j) % 24].regions.features.sum() for j in range(24)]
    with ThreadPoolExecutor(n) as pool:
        sums = list(pool.map(read, range(n)))
    assert all(sorted(s) == sorted(sums[0]) for s in sums)
    return None


def threads_one_model(folder, n):
    model = Network.build(TINY, ["a kite and a house"] * 2).eval()
    expected = model.encode_captions(["a kite"]).whole
    with ThreadPoolExecutor(n) as pool:
        for encoded in pool.map(lambda _: model.encode_captions(["a kite"]).whole, range(2 * n)):
            assert torch.equal(encoded, expected)
    return None


def million_captions(folder, n):
    images = MILLION // 5
    with open(folder / "captions.json", "w") as f:
        f.write('{"images": [')
        for i in range(images):
            sentences = [{"raw": f"a red kite number {i} above the small house {k}"} for k in range(5)]
            f.write((", " if i else "") + json.dumps({"id": f"im-{i}", "split": "train", "width": 640, "height": 480, "sentences": sentences}))
        f.write("]}")
    start = time.process_time()
    captions = read_captions(folder / "captions.json")
    seconds = time.process_time() - start
    assert len(captions) == MILLION
    assert seconds < SECONDS, f"{seconds:.1f} s of CPU to open a million captions"
    return {"captions.json"}


def grows_linearly(make, run, what):
    "The time for four times as much is at most eight times as long."
    times = []
    for size in (20_000, 80_000):
        value = make(size)
        start = time.process_time()
        run(value)
        times.append(time.process_time() - start)
    assert times[1] < 8 * times[0] + 0.2, f"{what}: {times[0]:.2f} s, then {times[1]:.2f} s for four times as much"


def linear(folder, n):
    import warnings
    warnings.simplefilter("ignore")

    def csv(size):
        (folder / "a.csv").write_text("image,caption\n" + "".join(f"im{i},{'a kite' if i % 3 else ''}\n" for i in range(size)))
        return size

    def table(size):
        return Captions(["a kite"] * size, range(size), [f"im{i}" for i in range(size)], splits=["train", "test"] * (size // 2))

    grows_linearly(csv, lambda _: read_captions(folder / "a.csv", bad="skip"), "captions with rows that are left out")
    grows_linearly(table, lambda c: chosen_images(Sources("p", split="train", ids=tuple(c.image_ids[::4])), c.image_ids, c.splits), "a part of many images")
    grows_linearly(table, lambda c: [c.rows_of(i) for i in range(len(c.image_ids))], "captions of every image")
    return None


def million_images(folder, n):
    "A store with a million images opens at once and finds the last one."
    with FeatureWriter(folder / "store", "toy", dim=2, boxes=False) as w:  # `add` would take minutes
        w._put("offsets", np.arange(1, MILLION + 1, dtype="<i8"))
        w._put("values", np.zeros((MILLION, 2), "<f2"))
        names = [f"im{i}".encode() for i in range(MILLION)]
        w.ids, w.total = set(names), MILLION
        w._put("image_ids", np.frombuffer(b"".join(names), np.uint8))
        w._put("image_ids_ends", np.cumsum([len(name) for name in names], dtype="<i8"))
    start = time.process_time()
    store = Features(folder / "store")
    assert len(store[f"im{MILLION - 1}"]) == 1
    seconds = time.process_time() - start
    assert seconds < SECONDS, f"{seconds:.1f} s"
    return {"store"}


def writers(folder):
    "Everything that writes, each too large for a small disk."
    model = Network.build(TINY, ["a kite and a house"] * 2)
    captions = Captions([f"a kite {'x' * 5000} {i}" for i in range(400)], range(400), [f"im{i}" for i in range(400)])

    def features():
        with FeatureWriter(folder / "features", "toy", 4096, "float32", boxes=False) as w:
            for i in range(400):
                w.add(f"im{i}", np.ones((1, 4096)))

    def text():
        with atomic(folder / "a.html") as tmp:
            tmp.write_text("x" * 4_000_000)

    def checkpoint():
        with atomic(folder / "last.pt") as tmp:
            torch.save({"w": torch.zeros(1_000_000)}, tmp)
    return {"checkpoint": checkpoint, "json": lambda: write_json(folder / "a.json", ["x" * 100] * 40_000), "tensors": lambda: save_tensors({"w": torch.zeros(1_000_000)}, folder / "w.safetensors"),
            "features": features, "captions": lambda: captions.save(folder / "c.json"), "text": text, "model": lambda: model.save(folder / "model"),
            "space": lambda: require_space(folder, 10**15)}


def on_small_disk(table, root, full):
    "Each writer on a disk of 1 MB, or on one that is read only; without the right to mount one, under a limit for files."
    disk = root / "disk"
    disk.mkdir()
    mounted = not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m" if full else "size=1m,ro", "tmpfs", str(disk)], capture_output=True).returncode
    name = "disk full" if full else "read only"
    try:
        if not mounted and not full:
            os.chmod(disk, 0o500)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if not mounted and full:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            for what, write in writers(disk).items():
                try:
                    write()
                    outcome, text = "silent", f"{what}: no error"
                    if what == "model" and full or not mounted and os.geteuid() == 0 and not full:
                        outcome = "right"  # small enough; or a superuser, who may write
                        shutil.rmtree(disk / "model", ignore_errors=True)
                except BaseException as e:
                    outcome, text = ("clear error" if is_clear(e, [str(disk)]) else "raw"), f"{what}: {describe(e)}"
                left = [p.name for p in disk.iterdir()]
                if left and outcome != "right":
                    outcome, text = "lost", f"{what}: left {left}"
                    for p in disk.iterdir():
                        shutil.rmtree(p) if p.is_dir() else p.unlink()
                table.add(name, outcome, text)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
        else:
            os.chmod(disk, 0o700)
        shutil.rmtree(disk)


def no_home(root):
    "Without HOME: a sentence, or the folder of the user."
    code = "from teran_nb.core.files import cache_home; print(cache_home())"
    env = {k: v for k, v in os.environ.items() if k not in ("HOME", "TERAN_NB_HOME")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return ("right", "") if not done.returncode else ("clear error" if "set TERAN_NB_HOME" in done.stderr else "raw", done.stderr[-300:])


HEAVY = (million_captions, million_images)
CASES = (threads_write_one_json, threads_make_one_folder, threads_one_relevance, threads_read_one_store, threads_one_model, linear, *HEAVY)


def campaign(seed, cases, only="", heavy=True):
    table, rng = Table(), random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        for case in rng.sample(CASES, len(CASES)):
            if only not in case.__name__ or case in HEAVY and not heavy:
                continue
            folder = root / "work"
            folder.mkdir()
            try:
                expected = case(folder, cases)
                left = {p.name for p in folder.iterdir()}
                hidden = [p.name for p in folder.rglob(".*")]
                outcome = ("right", "") if (expected is None or left == expected) and not hidden else ("lost", f"{left} {hidden}")
            except BaseException as e:
                outcome = "raw", describe(e)
            table.add(case.__name__.replace("_", " "), *outcome)
            shutil.rmtree(folder)
        if only in "disk full":
            on_small_disk(table, root, True)
        if only in "read only":
            on_small_disk(table, root, False)
        table.add("no home", *no_home(root))
    return table


if __name__ == "__main__":
    a = arguments(__doc__.splitlines()[0], 24)
    campaign(a.seed, a.cases, a.only).end()
