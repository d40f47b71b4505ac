"""Speed and memory of encoding pictures and sentences: a dual encoder of SigLIP-base's size, and a model of ours on region features.

`python benchmarks/encode.py` prints two tables in markdown (some minutes). Weights are random, which changes no time. Each row runs in a fresh process, and
its memory is the peak of that process's resident set, weights included. The first table is a whole encoding, pictures from JPEG files on; the second is
what each dense mode adds to the same model without one, by rounds that take turns.
Times are CPU times of one process, which a loaded machine changes less than the clock; with one thread (`OMP_NUM_THREADS=1`) they are those of one core.
"""
import argparse, json, statistics, subprocess, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import transformers
from common import machine, rss
from PIL import Image
from teran_nb.core.processes import seed_everything
from teran_nb.core.show import markdown_table
from teran_nb.data.features import Regions
from teran_nb.training.recipe import recipe
from teran_nb.model.network import Network
from teran_nb.zoo.dual import DualConfig, DualEncoder
from teran_nb.zoo.opening import family_of
from teran_nb.zoo.small_models import toy_folder

WORDS = "a red kite flies above the small house near two dogs and one green boat".split()


def cpu_seconds(f):
    "CPU seconds that a call takes, and what it returns."
    start = time.process_time()
    result = f()
    return time.process_time() - start,result

def save_model(folder, quick):
    "A random SigLIP of the base size, with 224 pixels and patches of 16; the smallest one with `quick`."
    toy_folder("siglip", folder)
    if quick: return
    seed_everything(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<unused{i}>" for i in range(32000 - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    text = {"vocab_size": 32000, "projection_size": 768, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    transformers.SiglipModel(transformers.SiglipConfig(text_config=text)).save_pretrained(folder)
    settings = json.loads((folder/"preprocessor_config.json").read_text())
    (folder/"preprocessor_config.json").write_text(json.dumps(settings | {"size": {"height": 224, "width": 224}}))

def save_pictures(folder, count):
    "Noise of 320 x 240 pixels, as JPEG."
    folder.mkdir()
    for i in range(count): Image.effect_noise((320,240), 10 + i % 90).convert("RGB").save(folder/f"{i:05}.jpg")
    return sorted(folder.iterdir())

def sentences(count):
    "Sentences of twelve words from a small vocabulary."
    g = torch.Generator().manual_seed(0)
    return [" ".join(WORDS[k] for k in torch.randint(len(WORDS), (12,), generator=g)) for _ in range(count)]

def ours(count):
    "An untrained model of the preset for drawn scenes, and 36 regions for each image."
    network = recipe().network
    g,dim = torch.Generator().manual_seed(0),network.regions.features
    features = [torch.randn(36, dim, generator=g).numpy() for _ in range(count)]
    seed_everything(0)
    model = Network.build(network, sentences(100)).eval()
    boxes = torch.tensor([[0.,0.,160.,120.]]*36).numpy()
    return model,[Regions(str(i), f, boxes, (320,240)) for i,f in enumerate(features)]

def job(what, a):
    "One row: pictures a second, regions each, sentences a second, peak megabytes."
    if what == "ours": model,images = ours(a["count"])
    else:
        family = family_of(a["model"], dtype=torch.bfloat16 if "bf16" in what else torch.float32)
        regions = "windows" if "windows" in what else "patches"
        model,images = DualEncoder(family, DualConfig(regions=regions)),sorted(Path(a["pictures"]).iterdir())
    if "windows" in what: images = images[:max(1, len(images)//8)]
    model.encode_images(images[:2])
    on_images,encoded = cpu_seconds(lambda: model.encode_images(images, batch_size=8))
    on_captions,_ = cpu_seconds(lambda: model.encode_captions(sentences(a["sentences"])))
    regions = len(encoded.parts.values)/len(images)
    print(json.dumps([len(images)/on_images, regions, a["sentences"]/on_captions, rss("VmHWM")]))

def run(what, a):
    "One row in a fresh process."
    done = subprocess.run([sys.executable, __file__, "--job", what, "--arguments", json.dumps(a)], capture_output=True, text=True)
    if done.returncode: raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])

def dense_modes(folder, paths, rounds):
    "Median seconds of a batch with each dense mode, by rounds that take turns."
    family,pictures = family_of(folder),[Image.open(p) for p in paths]
    seconds = {mode: [] for mode in family.modes}
    family.pictures(pictures, "none")
    for _ in range(rounds):
        for mode in seconds: seconds[mode].append(cpu_seconds(lambda: family.pictures(pictures, mode))[0])
    return {mode: statistics.median(values) for mode,values in seconds.items()}

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=32, help="pictures")
    p.add_argument("--sentences", type=int, default=48, help="sentences")
    p.add_argument("--rounds", type=int, default=3, help="of the dense modes")
    p.add_argument("--quick", action="store_true", help="the smallest model, only to see that it runs")
    p.add_argument("--job", help=argparse.SUPPRESS)
    p.add_argument("--arguments", type=json.loads, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.job: return job(a.job, a.arguments)
    with tempfile.TemporaryDirectory() as tmp:
        folder,count = Path(tmp),8 if a.quick else a.count
        save_model(folder/"model", a.quick)
        paths = save_pictures(folder/"pictures", count)
        about = {"model": str(folder/"model"), "pictures": str(folder/"pictures"), "count": count, "sentences": 20 if a.quick else a.sentences}
        rows = []
        for what in ("patches, fp32","patches, bf16","windows at two scales, fp32","ours"):
            name = "ours: 36 regions of given features" if what == "ours" else f"SigLIP base, {what}"
            images,regions,captions,peak = run(what, about)
            rows.append([name, f"{images:,.2f}", f"{regions:.0f}", f"{captions:,.1f}", f"{peak:,.0f}"])
        print(f"{count} pictures, {about['sentences']} sentences of 12 words; {machine()}\n")
        print(markdown_table(["","pictures a CPU second","regions each","sentences a CPU second","peak MB"], rows))
        seconds = dense_modes(folder/"model", paths[:4], 2 if a.quick else a.rounds)
        rows = [[mode, f"{1e3*s/4:,.1f}", f"{s/seconds['none']:.2f}"] for mode,s in seconds.items()]
        print("\n" + markdown_table(["dense","CPU ms a picture","x none"], rows))

if __name__ == "__main__": main()
