"""Long operations killed at random times and before the n-th file operation: what was finished stays, what was begun is continued, nothing is half.

`python tests/campaigns/kill.py --seed 0 --cases 400` prints a table and ends with status 1 unless its last four columns are zero.
"""
import io
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import warnings
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
from common import ROOT, Table, arguments, be_quiet, describe, in_process, rounds, wait_for, work_folder
from PIL import Image
from readers import TINY, encoded_batch, toy_collection
from tqdm import tqdm

from teran_nb.core.processes import seed_everything
from teran_nb.core.files import digest, read_json, write_json
from teran_nb.data.convert import PublishedFeatures, convert
from teran_nb.data.features import Features, FeatureWriter
from teran_nb.training.learner import Learner
from teran_nb.training.recipe import TrainConfig
from teran_nb.measure.relevance import rouge_l
from teran_nb.model.saving import load_or_encode
from teran_nb.model.network import Network
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.search.index import Index

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree", "shutil.copyfile")
tqdm.set_lock(threading.RLock())  # its usual lock belongs to all processes, and a child that is killed while it writes keeps it for ever
CONFIG = TrainConfig(epochs=2, batch_size=8, captions_per_image=2, learning_rate=3e-3, schedule="constant")


def content(folder, leave_out=()):
    "Digest of all files of a folder by their relative names."
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in leave_out]
    return digest({str(p.relative_to(folder)): digest(p) for p in files})


def make_inputs(folder):
    toy_collection(folder / "toy", 12, False)
    toy_collection(folder / "other", 12, False)
    (folder / "pictures").mkdir()
    for i in range(6):
        Image.linear_gradient("L").rotate(50 * i).convert("RGB").resize((40 + i, 40)).save(folder / "pictures" / f"p{i}.png")
    shutil.copytree(ROOT / "data/formats/bottom-up", folder / "foreign")


def json_file(folder, inputs):
    for i in range(20):
        write_json(folder / "a.json", {"numbers": [i] * 2000})


def json_state(folder):
    numbers = read_json(folder / "a.json", dict[str, list[int]])["numbers"] if (folder / "a.json").exists() else [19] * 2000
    assert len(numbers) == 2000 and len(set(numbers)) == 1, "half of a file"
    return numbers[0] == 19


def converting(folder, inputs):
    if not (folder / "store").exists():
        convert(PublishedFeatures(inputs / "foreign"), folder / "store", "toy", show_progress_bar=False)


def store_state(folder):
    return content(folder / "store") if Features(folder / "store").verify() else ""


def preparing(folder, inputs):
    prepare(Sources(pictures=str(inputs / "pictures")), folder / "made", show_progress_bar=False, workers=1)


def prepared_state(folder):
    assert sorted(p.name for p in (folder / "made").iterdir()) == ["captions.json", "collection.json", "features", "pictures.json", "stamps.json", "thumbnails"], "wrong files"
    return content(folder / "made", ("collection.json", "manifest.json"))


def training(folder, inputs):
    from teran_nb.data.collection import Collection
    world = Collection.open(inputs / "toy")
    seed_everything(0)
    model = Network.build(TINY, world.captions.texts)
    os.environ["TERAN_NB_HOME"] = str(folder / "home")
    Learner(model, world, world, CONFIG, folder / "run", device="cpu").fit()


def trained_state(folder):
    rows = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    last = {r["epoch"]: {k: v for k, v in r.items() if k != "seconds"} for r in rows}
    return digest([last, Network.load(folder / "run" / "model").fingerprint])


def saving_model(folder, inputs):
    for seed in (0, 1):
        seed_everything(seed)
        Network.build(TINY, ["a kite and a house"] * 2).save(folder / "model")


def model_state(folder):
    return Network.load(folder / "model").fingerprint


def relevance(folder, inputs):
    from teran_nb.data.caption_files import read_captions
    rouge_l(read_captions(inputs / "toy" / "captions.json"), folder)


def relevance_state(folder):
    file, = folder.glob("*.npy")
    return digest(file)


def keeping(folder, inputs):
    "Encode the images of a collection and keep them."
    from teran_nb.data.collection import Collection
    world = Collection.open(inputs / "toy")
    seed_everything(0)
    load_or_encode(Network.build(TINY, world.captions.texts), world, folder / "kept")


def kept_state(folder):
    kept, = [p for p in (folder / "kept").iterdir() if p.suffix != ".teran-part"]  # what a killed writer left goes after a day
    return digest(kept)


def indexing(folder, inputs):
    "Add images to an index, eight at a time, and note in a file on the disk what was acknowledged."
    noted = folder / "acknowledged"
    index = Index(None, folder / "index")
    lost = set(noted.read_text().split() if noted.exists() else []) - set(index.names)
    assert not lost, f"acknowledged and lost: {sorted(lost)}"
    for first in range(0, 48, 8):
        batch = encoded_batch(first, 8)
        index.add(batch, {"place": ["sea", "town"] * 4}, batch_size=4)
        with open(noted, "a") as f:
            f.write(" ".join(batch.names) + "\n")
            f.flush()
            os.fsync(f.fileno())
    index.close()


def index_content(folder):
    "Everything that an index holds and answers; its engine has threads, so no process that forks may run it."
    try:
        index = Index(None, folder / "index")
        index.verify()
        hits = [index.search(encoded_batch(0, 2)[j], 5, where={"place": "sea"}).ids for j in range(2)]
        return "right", digest([index.names, index[:].parts.values.tolist(), hits])
    except BaseException as e:
        return "raw", describe(e)


def index_state(folder):
    (_, (outcome, content_of_it)), = in_process(index_content, [folder])
    assert outcome == "right", content_of_it
    return content_of_it


TARGETS = {"json": (json_file, json_state), "convert": (converting, store_state), "prepare": (preparing, prepared_state),
           "train": (training, trained_state), "model": (saving_model, model_state),
           "relevance": (relevance, relevance_state), "encode": (keeping, kept_state), "index": (indexing, index_state)}
WARM = ("convert", "prepare", "train", "relevance", "encode")  # run once before the first fork, so that no child imports what they need


def child(run, folder, inputs, before=0):
    "Run in a process of its own, which dies before the n-th file operation in `folder`."
    pid = os.fork()
    if pid:
        return pid
    be_quiet()
    warnings.simplefilter("ignore")
    count = [0]

    def hook(event, args):
        if event not in OPERATIONS or str(folder) not in str(args[0]):
            return
        count[0] += 1
        if count[0] == before:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        run(folder, inputs)
        (folder.parent / "operations").write_text(str(count[0]))
    except BaseException as e:
        (folder.parent / "error").write_text(describe(e))
        os._exit(1)
    os._exit(0)


def finish(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def attempt(name, expected, operations, seconds, inputs, work, rng):
    "One case: kill once or twice, run to the end, compare with a run that was left alone."
    run, state = TARGETS[name]
    shutil.rmtree(work, ignore_errors=True)
    folder = work / "out"
    folder.mkdir(parents=True)
    what = []
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.7:
            before = rng.randint(1, operations)
            what.append(f"killed before operation {before} of {operations}")
            finish(child(run, folder, inputs, before))
        else:
            delay = rng.uniform(0, seconds)
            what.append(f"killed after {delay:.2f} s")
            pid = child(run, folder, inputs)
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            finish(pid)
    (work / "error").unlink(missing_ok=True)
    if finish(child(run, folder, inputs)):
        return "lost", f"{what}: cannot be continued: {(work / 'error').read_text() if (work / 'error').exists() else 'it died'}"
    try:
        result = state(folder)
    except Exception as e:
        return "raw", f"{what}: {describe(e)}"
    return ("right", "") if result == expected else ("silent", f"{what}: another result")


def other_namespace(work):
    "A process with the same host name and process ids of its own writes beside a running writer, and takes nothing from it."
    folder = work / "shared"
    folder.mkdir(parents=True)
    ready, go = work / "ready", work / "go"

    def slow(folder, inputs):
        with FeatureWriter(folder / "store", "toy", dim=1, boxes=False) as w:
            w.add("kite", np.ones((1, 1)))
            for p in [w.tmp.parent, *w.tmp.parent.rglob("*")]:
                os.utime(p, (0, 0))  # as old as can be
            ready.touch()
            wait_for(go.exists)

    writer = child(slow, folder, None)
    wait_for(ready.exists)
    code = f"from teran_nb.core.files import write_json; write_json({str(folder / 'x.json')!r}, [1])"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else ["unshare", "--user", "--pid", "--fork"]
    import subprocess
    done = subprocess.run([*unshare, sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:  # no namespaces here: an ordinary second process
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    go.touch()
    code = finish(writer)
    files = sorted(p.name for p in (folder / "store").iterdir()) if (folder / "store").is_dir() else []
    if done.returncode or code or files != ["image_ids.bin", "image_ids_ends.bin", "manifest.json", "offsets.bin", "values.bin"]:
        return "lost", f"{done.stderr[-300:]} {files}"
    return "right", ""


def two_at_once(work, inputs):
    "Two trainings in one folder: one is refused in a sentence, the other ends as if alone."
    folder = work / "two"
    folder.mkdir(parents=True)
    with_error = work / "error"
    first, second = child(training, folder, inputs), child(training, folder, inputs)
    codes = [finish(first), finish(second)]
    text = with_error.read_text() if with_error.exists() else ""
    if sorted(codes) == [0, 0]:
        return "right", ""  # one after the other
    if sorted(codes) == [0, 1] and "is being written by another process" in text:
        return "clear error", text
    return "lost", f"{codes} {text}"


def left_folder(work):
    "The folder of a writer is removed while it writes: it fails, and no store of a manifest alone is there."
    folder = work / "gone"
    folder.mkdir(parents=True)
    try:
        with FeatureWriter(folder / "store", "toy", dim=1, boxes=False) as w:
            w.add("kite", np.ones((1, 1)))
            shutil.rmtree(w.tmp.parent)
    except FileNotFoundError as e:
        return ("clear error", str(e)) if not (folder / "store").exists() else ("silent", str(e))
    return "silent", "no error"


def campaign(seed, cases, only="", limit=0):
    table = Table()
    names = [n for n in TARGETS if only in n]
    with work_folder() as root:
        root = Path(root)
        inputs, work = root / "inputs", root / "work"
        inputs.mkdir()
        make_inputs(inputs)
        for name in [n for n in names if n in WARM]:
            (root / "warm" / name).mkdir(parents=True)
            with redirect_stderr(io.StringIO()):
                TARGETS[name][0](root / "warm" / name, inputs)
        alone = {}
        for name in names:
            (work / "out").mkdir(parents=True)
            start = time.perf_counter()
            if finish(child(TARGETS[name][0], work / "out", inputs)):
                raise SystemExit(f"{name} fails without being killed: {(work / 'error').read_text()}")
            seconds = time.perf_counter() - start
            alone[name] = TARGETS[name][1](work / "out"), int((work / "operations").read_text()), seconds
            shutil.rmtree(work)
        for n, name in rounds(-(-cases // len(names)), names, limit):
            table.add(name, *attempt(name, *alone[name], inputs, work, random.Random(f"{seed}-{name}-{n}")))
        shutil.rmtree(work, ignore_errors=True)
        for name, run in (("other namespace", other_namespace), ("folder removed", left_folder), ("two at once", lambda w: two_at_once(w, inputs))):
            if only in name:
                work.mkdir(exist_ok=True)
                table.add(name, *run(work))
                shutil.rmtree(work)
    return table


if __name__ == "__main__":
    a = arguments(__doc__.splitlines()[0], 70)
    campaign(a.seed, a.cases, a.only, a.seconds).end()
