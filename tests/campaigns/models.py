"Models that others made, as transformers and UNITER save them, and what is kept of unfinished collections: how their files are made, read and judged."
import shutil
import tempfile
import weakref
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from PIL import Image
from transformers import AutoModel, AutoModelForObjectDetection, BertConfig, ViTConfig, YolosConfig

from teran_nb.core.processes import seed_everything
from teran_nb.core.files import write_json
from teran_nb.data.words import make_tokenizer
from teran_nb.model.text import TextConfig, text_encoder
from teran_nb.photos.detectors import Detector
from teran_nb.photos.duplicates import find_duplicates
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.photos.fine_tuning import TrainableBackbone
from teran_nb.photos.vision import Backbone
from teran_nb.zoo.dual import DualEncoder
from teran_nb.zoo.small_models import ScratchConfig, small_clip
from teran_nb.zoo.uniter import load_uniter

TEXTS = ["a kite and a house", "a boat above a star"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
PROCESSOR = {"do_resize": True, "size": {"height": 32, "width": 32}, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
             "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}


@cache
def picture():
    return Image.linear_gradient("L").convert("RGB").resize((40, 30))


def is_finite(values):
    return bool(values.numel()) and bool(values.isfinite().all())


def save_vision(config, folder, auto=AutoModel):
    seed_everything(0)
    auto.from_config(config).save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", PROCESSOR)


def make_vision(folder):
    save_vision(ViTConfig(**SIZES, image_size=32, patch_size=16), folder / "vit")


def read_vision(folder):
    return Backbone(str(folder / "vit")).maps([picture()])


def make_learning(folder):
    with tempfile.TemporaryDirectory() as source:
        make_vision(Path(source))
        TrainableBackbone(Backbone(f"{source}/vit")).save(folder / "vision")


def read_learning(folder):
    network = TrainableBackbone.load(folder / "vision")
    return network(network.read([picture()]), torch.tensor([[[0.0, 0, 1, 1]]]))


def make_detector(folder):
    config = YolosConfig(**SIZES, image_size=[32, 32], patch_size=16, num_detection_tokens=5, num_labels=3)
    save_vision(config, folder / "yolos", AutoModelForObjectDetection)


def read_detector(folder):
    boxes, scores, _ = Detector(str(folder / "yolos"))([picture()])[0]
    return torch.cat([boxes.flatten(), scores])


def make_dual(folder):
    model, tokenizer, processor = small_clip(TEXTS * 2, ScratchConfig(size=32, dim=16, layers=1, heads=2, tokens=16))
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder / "clip")


def read_dual(folder):
    return DualEncoder.from_pretrained(folder / "clip", cache_folder=None).similarity([picture()], TEXTS)


def make_text(folder):
    tokenizer = make_tokenizer(TEXTS * 2)
    tokenizer.save_pretrained(folder / "bert")
    seed_everything(0)
    AutoModel.from_config(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **SIZES)).save_pretrained(folder / "bert")


def read_text_model(folder):
    return text_encoder(TextConfig(pretrained=str(folder / "bert"), layers=1, max_tokens=16))(TEXTS)[0]


def make_uniter(folder):
    "Random weights by the names of the published code."
    tokenizer = make_tokenizer(TEXTS * 2)
    tokenizer.save_pretrained(folder / "tokenizer")
    BertConfig(vocab_size=len(tokenizer)).save_pretrained(folder / "tokenizer")
    layer, regions, linear = "uniter.encoder.layer.0", "uniter.img_embeddings", {}
    tables = {"word": (len(tokenizer), 64), "position": (20, 64), "token_type": (2, 64)}
    tables = {f"uniter.embeddings.{name}_embeddings": shape for name, shape in tables.items()} | {f"{regions}.mask_embedding": (2, 6)}
    for part in ("self.query", "self.key", "self.value", "output.dense"):
        linear[f"{layer}.attention.{part}"] = (64, 64)
    linear |= {f"{layer}.intermediate.dense": (32, 64), f"{layer}.output.dense": (64, 32), f"{regions}.img_linear": (64, 6)}
    linear |= {f"{regions}.pos_linear": (64, 7), "uniter.pooler.dense": (64, 64), "itm_output": (2, 64)}
    norms = ["uniter.embeddings", regions, f"{layer}.attention.output", f"{layer}.output"]
    norms = [f"{name}.LayerNorm" for name in norms] + [f"{regions}.img_layer_norm", f"{regions}.pos_layer_norm"]
    weights = {f"{name}.weight": torch.rand(shape) for name, shape in (tables | linear).items()}
    weights |= {f"{name}.bias": torch.rand(shape[0]) for name, shape in linear.items()}
    for name in norms:
        weights |= {f"{name}.weight": torch.ones(64), f"{name}.bias": torch.zeros(64)}
    torch.save(weights, folder / "uniter.pt")


def read_uniter(folder):
    model = load_uniter(folder / "uniter.pt", folder / "tokenizer")
    return model.encode_captions(TEXTS).whole


@cache
def some_pictures(make):
    "A folder that stays where it is."
    holder = tempfile.TemporaryDirectory()
    weakref.finalize(make, holder.cleanup)
    for i in range(3):
        picture().rotate(50 * i).save(f"{holder.name}/p{i}.png")
    Path(holder.name, "broken.png").write_bytes(b"no picture")
    return Sources(pictures=holder.name)


def read_prepared(folder):
    return prepare(some_pictures(make_prepared), folder / "made", show_progress_bar=False, workers=1)


def make_prepared(folder):
    read_prepared(folder)


def make_preparing(folder):
    "A collection whose making was stopped at its end."
    with patch("teran_nb.photos.prepare._link_pictures", side_effect=KeyboardInterrupt):
        try:
            read_prepared(folder)
        except KeyboardInterrupt:
            shutil.rmtree(folder / "made", ignore_errors=True)


def prepared_holds(made):
    "It shows itself, and its pictures and what was left out are there."
    names = [name for name, reason in made.left_out.items() if type(reason) is str and reason]
    return bool(made._repr_markdown_()) and names == ["broken.png"] and len(made.open()) == 3 and find_duplicates(made.open()).images <= 3
