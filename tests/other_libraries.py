"""Compare with OpenCLIP and colpali-engine on random weights, and store their outputs for tests/test_other_libraries.py.

They need torchvision, so they have an environment of their own beside the torch of this one:
    python -m venv --without-pip /tmp/others
    python -m pip install --no-deps --target /tmp/others/lib/python3.11/site-packages open_clip_torch torchvision timm ftfy wcwidth einops seaborn colpali-engine
    PYTHONPATH=$PWD:/tmp/others/lib/python3.11/site-packages python tests/other_libraries.py
"""
import json
import sys
import tempfile
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer

STORED = Path(__file__).with_suffix(".json")
TEXTS = ["a red kite above the house", "a small dog", "the blue house on the grass, seen from the left."]
OPEN_CLIP = {  # model_cfg and preprocess_cfg
    "gelu": ({}, {}),
    "quickgelu": ({"quick_gelu": True}, {"mean": [.5, .5, .5], "std": [.5, .5, .5], "interpolation": "bilinear"}),
    "squash": ({"custom_text": True}, {"resize_mode": "squash"}),
    "pe-core": ({"custom_text": True, "vision_cfg": {"timm_model_name": "vit_pe_core_tiny_patch16_384", "timm_pool": "map", "image_size": 384}}, {"mean": [.5, .5, .5]}),
    "mobileclip2-s0": ({"custom_text": True, "vision_cfg": {"timm_model_name": "fastvit_mci0", "timm_pool": "avg", "image_size": 256}}, {"mean": [0, 0, 0], "std": [1, 1, 1]}),
}
TOWERS = ("pe-core", "mobileclip2-s0")  # of timm, whose weights this file makes
VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
TEXT = {"context_length": 64, "width": 32, "heads": 4, "layers": 2}


def picture(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


PICTURES = [picture(90, 40), picture(40, 90), picture(33, 33), picture(57, 38)]


def random_weight(name, shape):
    "A weight that depends on its name only."
    rng = torch.Generator().manual_seed(crc32(name.encode()))
    x = torch.randn(shape, generator=rng)
    if name.endswith("logit_scale"):
        return torch.full(shape, 3.)
    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.int64)
    if name.endswith("running_var"):
        return 1 + x.abs() / 10
    if ".trunk." in name:
        return x * x[0].numel() ** -.5 if len(shape) > 1 else 1 + x / 10 if name.endswith("weight") else x / 10
    return x * shape[-1] ** -.5 if len(shape) > 1 else 1 + x / 10 if "ln_" in name and "weight" in name else x / 10


def letters():
    "A tokenizer of letters; the end of a sentence has the largest number, as in OpenCLIP's."
    own = [*"abcdefghijklmnopqrstuvwxyz,."]
    pieces = [*own, *[f"{letter}</w>" for letter in own], "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=TEXT["context_length"])


def model_settings(kind):
    changes, pixels = OPEN_CLIP[kind]
    text = {**TEXT, "vocab_size": len(letters()), **({"no_causal_mask": True} if kind == "mobileclip2-s0" else {})}
    model = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": text, **changes}
    if kind in TOWERS:
        model["vision_cfg"] = {**model["vision_cfg"], "timm_proj": None, "timm_model_pretrained": False}
    return {"model_cfg": model, "preprocess_cfg": pixels}


def open_clip_folder(folder, kind, shapes):
    "A folder as OpenCLIP saves it, without that package."
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(model_settings(kind)))
    weights = {name: random_weight(name, shape) for name, shape in shapes.items()}
    if kind == "quickgelu":
        torch.save(weights, folder / "open_clip_pytorch_model.bin")
    else:
        save_file(weights, folder / "open_clip_model.safetensors")
    letters().save_pretrained(folder)
    return folder


def ask_open_clip(kind):
    "What OpenCLIP itself makes of pictures and texts."
    import open_clip
    settings = model_settings(kind)
    config = {key: value for key, value in settings["model_cfg"].items() if key != "custom_text"}
    build = open_clip.CustomTextCLIP if "custom_text" in settings["model_cfg"] else open_clip.CLIP
    model = build(**config).eval()
    shapes = {name: list(weight.shape) for name, weight in model.state_dict().items() if name not in ("attn_mask", "text.attn_mask")}
    model.load_state_dict({name: random_weight(name, shape) for name, shape in shapes.items()}, strict=False)
    prepare = open_clip.transform.image_transform(config["vision_cfg"]["image_size"], is_train=False, **settings["preprocess_cfg"])
    pixels = torch.stack([prepare(p) for p in PICTURES])
    tokens = torch.zeros(len(TEXTS), TEXT["context_length"], dtype=torch.long)
    for row, ids in zip(tokens, letters()(TEXTS)["input_ids"]):
        row[:len(ids)] = torch.tensor(ids)
    with torch.no_grad():
        images, texts = model.encode_image(pixels, normalize=True), model.encode_text(tokens, normalize=True)
        logits = model.get_logits(pixels, tokens)[0]
    return {"shapes": shapes, "images": images.tolist(), "texts": texts.tolist(), "logits": logits.tolist()}


def late_parts(kind):
    "Configuration, image processor and tokenizer of a small vision-language model."
    import transformers
    from teran_nb.zoo import small_models as small
    base = {"qwen2_5_vl": "colqwen2", "qwen3_vl": "colqwen2", "qwen2_vl": "colqwen2", "paligemma": "colpali", "gemma3": "colpali"}
    network, processor, tokenizer = small.toy_parts(base.get(kind, "colmodernvbert"))
    config = network.config.vlm_config
    if "qwen" in kind:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|video_pad|>", "<|endoftext|>"]})
        config.text_config.vocab_size = len(tokenizer)
    text, vision = config.text_config.to_dict(), config.vision_config.to_dict()
    plain = {**small._SIZES, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "num_key_value_heads": 2, "head_dim": 8}
    image = {"image_token_id": config.image_token_id}
    if kind == "qwen2_5_vl":
        vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "patch_size": 8, "out_hidden_size": 32,
                  "window_size": 32, "fullatt_block_indexes": [1]}
        config = transformers.Qwen2_5_VLConfig(text_config={**text, "model_type": "qwen2_5_vl_text"}, vision_config=vision, **image)
    if kind == "qwen3_vl":
        vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "patch_size": 8, "out_hidden_size": 32,
                  "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        config = transformers.Qwen3VLConfig(text_config={**plain, "rope_parameters": text["rope_parameters"]}, vision_config=vision, **image)
    if kind == "idefics3":
        vision = {**small._RANDOM_VISION}
        config = transformers.Idefics3Config(text_config={"model_type": "llama", **plain}, vision_config=vision, scale_factor=2, **image)
    if kind == "gemma3":
        extra = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
        turns = ["<start_of_turn>", "<end_of_turn>"]
        tokenizer = transformers.GemmaTokenizer(vocab=small._small_vocabulary(small._GEMMA), merges=[], extra_special_tokens=extra)
        tokenizer.add_special_tokens({"additional_special_tokens": turns})
        tokenizer.chat_template = ("{{bos_token}}{% for m in messages %}<start_of_turn>user\n{% for c in m['content'] %}{% if c['type'] == 'image' %}"
                                   "<start_of_image>{% else %}{{c['text']}}{% endif %}{% endfor %}<end_of_turn>\n{% endfor %}")
        image = {"image_token_index": tokenizer.image_token_id}
        config = transformers.Gemma3Config(text_config={**plain, "vocab_size": len(tokenizer)}, vision_config={**small._RANDOM_VISION},
                                           mm_tokens_per_image=4, **image)
        processor = small.image_processor_class("gemma3.Gemma3ImageProcessorPil")(size={"height": 32, "width": 32})
    return config, processor, tokenizer


LATE = {"paligemma": ("ColPali", "ColPaliProcessor"), "qwen2_vl": ("ColQwen2", "ColQwen2Processor"), "qwen2_5_vl": ("ColQwen2_5", "ColQwen2_5_Processor"),
        "qwen3_vl": ("ColQwen3", "ColQwen3Processor"), "idefics3": ("ColIdefics3", "ColIdefics3Processor"),
        "modernvbert": ("ColModernVBert", "ColModernVBertProcessor"), "gemma3": ("ColGemma3", "ColGemmaProcessor3")}


def late_folder(folder, kind, shapes):
    "A folder as colpali-engine saves it, without that package."
    for part in late_parts(kind):
        part.save_pretrained(folder)
    more = {"image_seq_len": 4} if kind in ("idefics3", "modernvbert") else {"image_seq_length": 4} if kind == "gemma3" else {}
    if more:
        (folder / "processor_config.json").write_text(json.dumps(more))
    save_file({name: random_weight(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, more


def ask_colpali_engine(kind, folder):
    "What colpali-engine makes of pictures and texts, and its maps of a text on a picture."
    from colpali_engine import models
    from colpali_engine.interpretability import get_similarity_maps_from_embeddings
    config, images, tokenizer = late_parts(kind)
    getattr(models, LATE[kind][0])(config).save_pretrained(folder)
    shapes = {name: list(weight.shape) for name, weight in load_file(folder / "model.safetensors").items()}
    _, more = late_folder(folder, kind, shapes)
    model = getattr(models, LATE[kind][0]).from_pretrained(folder).eval()
    build = getattr(models, LATE[kind][1])
    build.check_argument_for_proper_class = lambda *args: None  # Qwen's also want a processor of videos
    processor = build(image_processor=images, tokenizer=tokenizer, **more)
    maps = []
    with torch.no_grad():
        queries = [model(**processor.process_queries([t]))[0] for t in TEXTS]
        passages = []
        for p in PICTURES:
            batch = processor.process_images([p])
            passages.append(model(**batch)[0])
            if kind.startswith("qwen"):
                grid = tuple((batch["image_grid_thw"][0, 1:] // 2).flip(0).tolist())
                mask = processor.get_image_mask(batch)
                maps.append(get_similarity_maps_from_embeddings(passages[-1][None], queries[0][None], grid, mask)[0])
    return {"shapes": shapes, "scores": processor.score_multi_vector(queries, passages, device="cpu").tolist()}, maps


def late_difference(family, stored):
    "Largest difference of the scores from stored ones."
    from teran_nb.core.packed import Packed
    from teran_nb.model.similarity import similarity
    seen, read = family.pictures(PICTURES), family.sentences(TEXTS)
    compared = [torch.cat(vectors) for vectors in zip(seen.patches, seen.others)]
    score = similarity(Packed.from_sets(compared), Packed.from_sets(read.tokens), "mrsw")
    return float((score - torch.tensor(stored["scores"]).T).abs().max())


def neomme_difference():
    "Largest difference of the pixels, positions and vectors of pictures from those of transformers, whose image processor needs torchvision."
    from transformers.models.neomme.image_processing_neomme import NeoMMEImageProcessor
    from teran_nb.zoo.late import NeoMmeImages
    found = {}
    for bounds in ({}, {"max_side": 32}, {"size": {"min_pixels": 2000, "max_pixels": 3000}}, {"size": {"min_pixels": 6000, "max_pixels": 9000}, "max_side": 120}):
        theirs, ours = NeoMMEImageProcessor(patch_size=8, **bounds)(PICTURES, return_tensors="pt"), NeoMmeImages(patch_size=8, **bounds)(PICTURES)
        assert theirs["image_grid_hw"].tolist() == [list(grid) for grid in ours["grids"]], bounds
        found[str(bounds)] = float((theirs["pixel_values"] - ours["pixel_values"]).abs().max())
    return found


def largest_difference(family, stored):
    "Largest differences of images, texts and logits from stored ones."
    seen, read = family.pictures(PICTURES).whole, family.sentences(TEXTS).whole
    ours = {"images": seen, "texts": read, "logits": family.score(seen, read)}
    return {name: float((x.cpu() - torch.tensor(stored[name])).abs().max()) for name, x in ours.items()}


if __name__ == "__main__":
    for op in ("nms", "qnms"):  # torchvision expects them, and its build for CUDA does not load here
        torch.library.define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from teran_nb.zoo.opening import family_of
    only = sys.argv[1:]
    stored = json.loads(STORED.read_text()) if only else {}
    stored.setdefault("open_clip", {}).update({kind: ask_open_clip(kind) for kind in OPEN_CLIP if not only or kind in only})
    for kind, outputs in stored["open_clip"].items():
        if only and kind not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            family = family_of(open_clip_folder(Path(folder) / kind, kind, outputs["shapes"]))
            print(kind, largest_difference(family, outputs))
    for kind in [kind for kind in LATE if not only or kind in only]:
        with tempfile.TemporaryDirectory() as folder:
            stored.setdefault("colpali_engine", {})[kind], maps = ask_colpali_engine(kind, Path(folder))
            family = family_of(folder)
            differences = {"scores": late_difference(family, stored["colpali_engine"][kind])}
            for theirs, patches, grid in zip(maps, family.pictures(PICTURES).patches, family.pictures(PICTURES).grids):
                ours = (family.sentences(TEXTS).tokens[0] @ patches.T).unflatten(1, grid).mT
                differences["maps"] = max(float((ours - theirs).abs().max()), differences.get("maps", 0.))
            print(kind, differences)
    if not only or "neomme" in only:
        print("neomme", neomme_difference())
    def rounded(x): return [rounded(v) for v in x] if isinstance(x, list) else round(x, 7) if isinstance(x, float) else x
    STORED.write_text(json.dumps({part: {kind: {key: rounded(v) for key, v in outputs.items()} for kind, outputs in kinds.items()}
                                  for part, kinds in stored.items()}))
    print(STORED.stat().st_size // 1000, "kB", file=sys.stderr)
