"""What the pages of the families have no room for: boxes and hooks of all of them, SentencePiece, old settings, batches, the hub's cache."""
import os
import shutil
import string
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image, ImageDraw
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from conftest import ROOT
from other_libraries import LATE
from teran_nb.core.files import read_json, write_json
from teran_nb.zoo.families import unit_vectors
from teran_nb.zoo.late import NeoMmeImages
from teran_nb.zoo.opening import FAMILIES, family_of
from teran_nb.zoo import regions_words
from teran_nb.zoo.small_models import TOY_FAMILIES, toy_folder, toy_parts

TEXTS = ["A red kite, above the house.", "dog", "the small blue house on the grass"]


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


PICTURES = [noise(90, 40), noise(40, 90), noise(33, 33)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: toy_folder(kind, folder / kind) for kind in TOY_FAMILIES}


def test_small_families_are_known(models):
    assert set(FAMILIES) == set(TOY_FAMILIES) | set(LATE) | {"qwen3_vl_embedding", "neomme"}


@pytest.mark.parametrize("kind", TOY_FAMILIES)
def test_a_batch_changes_nothing(models, kind):
    family = family_of(models[kind])
    together, read = family.pictures(PICTURES), family.sentences(TEXTS)
    for i, (picture, text) in enumerate(zip(PICTURES, TEXTS)):
        alone, one = family.pictures([picture]), family.sentences([text])
        assert torch.allclose(alone.patches[0], together.patches[i], atol=1e-4)
        assert torch.allclose(alone.whole[0], together.whole[i], atol=1e-4)
        assert torch.allclose(one.tokens[0], read.tokens[i], atol=1e-4)
        assert torch.allclose(one.whole[0], read.whole[i], atol=1e-4)
        assert alone.grids[0] == together.grids[i] and torch.equal(alone.boxes[0], together.boxes[i])
        assert one.offsets[0] == read.offsets[i]
        if family.word_source == "tokens":
            assert torch.allclose(alone.others[0], together.others[i], atol=1e-4)


@pytest.mark.parametrize("kind", TOY_FAMILIES)
def test_boxes_tile_what_the_model_sees(models, kind):
    seen = family_of(models[kind]).pictures(PICTURES)
    for picture, (rows, columns), boxes in zip(PICTURES, seen.grids, seen.boxes):
        grid = boxes.view(rows, columns, 4)
        assert torch.equal(grid[:, :-1, 2], grid[:, 1:, 0]) and torch.equal(grid[:-1, :, 3], grid[1:, :, 1])
        assert (boxes[:, 2:] > boxes[:, :2]).all() and boxes.min() >= 0
        assert boxes[:, 2].max() <= picture.width and boxes[:, 3].max() <= picture.height


ONE_VECTOR = [kind for kind in TOY_FAMILIES if FAMILIES[kind].word_source == "prompts"]


def painted(size, box):
    "A black picture with a white square on the box of a patch."
    picture = Image.new("RGB", size)
    x1, y1, x2, y2 = box.tolist()
    ImageDraw.Draw(picture).rectangle((np.ceil(x1), np.ceil(y1), int(x2) - 1, int(y2) - 1), fill="white")
    return picture


def brightness(family, picture):
    "Mean of the prepared pixels of each patch, in the order of the patches."
    if family.word_source == "prompts":
        prepared = family.preprocess([picture])[0]
    else:
        prepared = family.processor.process_images(images=[picture])
    x = prepared["pixel_values"].float()
    if family.name == "siglip2":
        return x[0].mean(-1) * prepared["pixel_attention_mask"][0]
    if family.name == "colqwen2":
        return x[0].mean(-1).view(-1, 4).mean(-1)
    if family.name != "colmodernvbert":
        return F.avg_pool2d(x.mean(1), 8).ravel()
    tiles = x[0, :-1] if x.shape[1] > 1 else x[0]
    return F.avg_pool2d(tiles.mean(1), 16).ravel()[family.layout(prepared, 0)[1]]


@pytest.mark.parametrize("kind", TOY_FAMILIES)
def test_the_box_of_a_patch_is_what_the_model_reads_there(models, kind):
    "The painted patch of the model's input is the brightest, whatever the picture's shape."
    family = family_of(models[kind])
    for size in ((90, 40), (40, 90), (64, 64), (35, 50)):
        boxes, = family.pictures([Image.new("RGB", size)]).boxes
        for k in range(0, len(boxes), 3):
            assert int(brightness(family, painted(size, boxes[k])).argmax()) == k


@pytest.mark.parametrize("kind", ONE_VECTOR)
def test_the_vector_of_a_patch_is_that_of_its_place(models, kind):
    "With one block and the values of its attention a patch sees only itself, so the painted square changes its vector most."
    shallow = family_of(models[kind])
    del shallow.layers[0]
    for size in ((90, 40), (40, 90)):
        before = shallow.pictures([Image.new("RGB", size)], "value")
        for k in range(0, len(before.boxes[0]), 4):
            after = shallow.pictures([painted(size, before.boxes[0][k])], "value")
            assert int((after.patches[0] - before.patches[0]).norm(dim=1).argmax()) == k


def own_attention(mode, q, k, v, mask, near):
    "Queries with keys, as the models themselves."
    logits = q @ k.mT * q.shape[-1]**-.5
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], -torch.inf)
    return logits.softmax(-1) @ v


@pytest.mark.parametrize("kind", ONE_VECTOR)
def test_the_hooks_find_every_part_of_the_last_block(models, kind, monkeypatch):
    "A mode with the model's own attention gives the model's own states, if heads, scale, projection and residual are found."
    monkeypatch.setattr(regions_words, "dense_attention", own_attention)
    family = family_of(models[kind])
    for own, plain in zip(family.pictures(PICTURES, "value").patches, family.pictures(PICTURES, "none").patches):
        assert torch.allclose(own, plain, atol=1e-5)


def attended(block, a, b, v):
    "Attention of CLIP with vectors `a` to `b` of the values `v`, all `(n, tokens, width)`."
    own = block.self_attn
    a, b, v = [x.unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for x in (a, b, v)]
    return own.out_proj(((a @ b.mT * a.shape[-1]**-.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("layers", [2, 8])
def test_surgery_is_the_second_path_of_the_paper(layers):
    "CLIP Surgery (arXiv 2304.05653), section 3.2, written out: the model's own path, and beside it the sum of values with values of six blocks."
    model, processor, tokenizer = toy_parts("clip")
    config = model.config
    config.vision_config.num_hidden_layers = layers
    torch.manual_seed(0)
    model = type(model)(config).eval()
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1]**-.5)
    vision = model.vision_model
    with torch.no_grad():
        own = vision.pre_layrnorm(vision.embeddings(processor(PICTURES, return_tensors="pt").pixel_values))
        second = None
        for i, block in enumerate(vision.encoder.layers):
            normed = block.layer_norm1(own)
            q, k, v = [project(normed) for project in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)]
            if i >= layers - 6:
                second = (own if second is None else second) + attended(block, v, v, v)
            own = own + attended(block, q, k, v)
            own = own + block.mlp(block.layer_norm2(own))
        wanted = unit_vectors(model.visual_projection(vision.post_layernorm(second)))[:, 1:]
    found = FAMILIES["clip"](model, processor, tokenizer).pictures(PICTURES, "surgery").patches
    assert torch.allclose(torch.stack(found), wanted, atol=1e-5)


BOXES = [torch.tensor([[.4, .3, .6, .9], [0., 0., 1., 1.]]) * torch.tensor([*p.size, *p.size]) for p in PICTURES]


def vector_by_patches(family, picture, box):
    "The vector of a box by CLIP's restricted attention, patch by patch."
    vision, patches = family.model.vision_model, family.pictures([picture])
    states = vision(**family.processor([picture], return_tensors="pt"), output_hidden_states=True).hidden_states[-2][0, 1:]
    block, total, covered = vision.encoder.layers[-1], 0, 0
    for state, (x1, y1, x2, y2) in zip(states, patches.boxes[0].tolist()):
        wide = min(x2, box[2]) - max(x1, box[0])
        high = min(y2, box[3]) - max(y1, box[1])
        share = max(wide, 0)*max(high, 0)/((x2 - x1)*(y2 - y1))
        total = total + share*block.self_attn.v_proj(block.layer_norm1(state))
        covered = covered + share
    y = block.self_attn.out_proj(total/covered)
    return unit_vectors(family.model.visual_projection(vision.post_layernorm(y + block.mlp(block.layer_norm2(y)))))


def test_boxes_of_clip_by_restricted_attention(models):
    family = family_of(models["clip"])
    for picture, boxes, vectors in zip(PICTURES, BOXES, family.pictures(PICTURES, regions=BOXES).regions):
        for box, vector in zip(boxes.tolist(), vectors):
            assert torch.allclose(vector, vector_by_patches(family, picture, box), atol=1e-5)


@pytest.mark.parametrize("kind", ["siglip", "siglip2", "aimv2"])
def test_a_box_on_one_patch_has_its_vector_behind_a_pooling_head(models, kind):
    family = family_of(models[kind])
    patches = family.pictures(PICTURES, "none")
    for vectors, own in zip(family.pictures(PICTURES, regions=patches.boxes).regions, patches.patches):
        assert torch.allclose(vectors, own, atol=1e-5)


@pytest.mark.parametrize("kind", ["metaclip_2", "chinese_clip", "altclip", "tipsv2"])
def test_boxes_have_vectors_of_unit_length(models, kind):
    for vectors in family_of(models[kind]).pictures(PICTURES, regions=BOXES).regions:
        assert torch.allclose(vectors.norm(dim=1), torch.ones(2), atol=1e-5)


def test_a_box_on_the_whole_picture_has_its_vector_where_attention_is_level(models):
    family = family_of(models["siglip"])
    head = family.model.vision_model.head
    torch.nn.init.zeros_(head.probe)  # the query of the pooling head
    torch.nn.init.zeros_(head.attention.in_proj_bias)
    level = family.pictures(PICTURES, regions=BOXES)
    for vectors, whole in zip(level.regions, level.whole):
        assert torch.allclose(vectors[1], whole, atol=1e-5)


def test_pictures_of_any_mode(models):
    family = family_of(models["clip"])
    grey = family.pictures([noise(40, 40).convert("L")]).whole
    assert torch.allclose(grey, family.pictures([noise(40, 40).convert("L").convert("RGB")]).whole)
    assert torch.isfinite(family.pictures([Image.new("RGBA", (1, 1)), Image.new("P", (200, 3)), Image.new("1", (3, 50))]).whole).all()


def test_old_settings_of_clip(models, tmp_path):
    "OpenAI's own repository has numbers where newer ones have names of edges."
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    settings = read_json(folder / "preprocessor_config.json")
    old = {"size": 36, "crop_size": 32, "feature_extractor_type": "CLIPFeatureExtractor"}
    write_json(folder / "preprocessor_config.json", {**{k: v for k, v in settings.items() if k != "image_processor_type"}, **old})
    old, new = family_of(folder).pictures(PICTURES), family_of(models["clip"]).pictures(PICTURES)
    assert torch.equal(old.whole, new.whole) and torch.equal(old.boxes[0], new.boxes[0])


def test_tiles_are_merged_row_by_row(models):
    "Each token of ColModernVBert stands for 2 x 2 patches of a tile, in reading order."
    family = family_of(models["colmodernvbert"])
    patches = torch.arange(16.).view(1, 16, 1)
    merged = family.model.vlm.connector.pixel_shuffle(patches, 2)
    assert merged[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def sentencepiece(folder, name, **how):
    "Train a tiny SentencePiece model."
    spm = pytest.importorskip("sentencepiece")
    letters = " ".join(string.ascii_letters + string.digits)
    (folder / "text.txt").write_text("\n".join([letters, "a red kite above the house", "the dog on the grass is small, a photo."] * 20))
    spm.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / name), vocab_size=70, hard_vocab_limit=False, character_coverage=1.,
        bos_id=-1, minloglevel=2, **how)


def without_tokenizer(source, folder):
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("tokenizer*"))
    return folder


def test_the_first_siglip_has_a_slow_tokenizer(models, tmp_path):
    folder = without_tokenizer(models["siglip"], tmp_path / "siglip")
    sentencepiece(folder, "spiece", unk_id=2, eos_id=1, pad_id=0)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "SiglipTokenizer", "model_max_length": 64})
    family = family_of(folder)
    assert not family.tokenizer.is_fast
    read = family.sentences(TEXTS)
    tokens = family.tokenizer(TEXTS, padding="max_length", max_length=64, return_tensors="pt")
    tokens.pop("attention_mask", None)  # it was trained without
    pictures = family.processor(PICTURES, return_tensors="pt")
    wanted = family.model(**tokens, **pictures).logits_per_image
    assert torch.allclose(family.score(family.pictures(PICTURES).whole, read.whole), wanted, atol=1e-5)
    text, spans = TEXTS[0], read.offsets[0]
    assert "".join(text[start:end] for start, end in spans) == "Aredkiteabovethehouse"


def test_tips_from_a_sentencepiece_file(models, tmp_path):
    folder = without_tokenizer(models["tipsv2"], tmp_path / "tips")
    sentencepiece(folder, "tokenizer", model_type="bpe", unk_id=1, eos_id=-1, pad_id=0)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Tipsv2Tokenizer"})
    family = family_of(folder)
    read = family.sentences(TEXTS)
    tokens = family.tokenizer(TEXTS, padding="max_length", max_length=64, return_tensors="pt")
    wanted = family.model(**tokens, **family.processor(PICTURES, return_tensors="pt")).logits_per_image
    assert torch.allclose(family.score(family.pictures(PICTURES).whole, read.whole), wanted, atol=1e-4)
    text = TEXTS[2]
    covered = {i for start, end in read.offsets[2] for i in range(start, end)}
    assert covered == {i for i, letter in enumerate(text) if letter != " "}


def test_neomme_opens_by_its_folder(tmp_path):
    "Its projection lies inside the model, though its sentences have a prompt as those of models with a layer beside them."
    names = ["pad", "query", "doc", "img", "row"]
    pieces = [f"<{name}>" for name in names] + [*string.ascii_lowercase, " "]
    backend = Tokenizer(WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<pad>"))
    backend.pre_tokenizer = Split(Regex("<[a-z]+>|."), "isolated")
    special = {"image_token": "<img>", "row_token": "<row>", "document_token": "<doc>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", extra_special_tokens=special)
    config = transformers.NeoMMEConfig(
        vocab_size=len(pieces), embedding_rank=8, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, patch_size=8, embedding_dim=24, document_token_id=2, image_token_id=3)
    model, images = transformers.NeoMMEForRetrieval(config), NeoMmeImages(patch_size=8, max_side=32)
    for part in (model, images, tokenizer):
        part.save_pretrained(tmp_path)
    opened, own = family_of(tmp_path), FAMILIES["neomme"](model, images, tokenizer)
    assert opened.fingerprint == own.fingerprint
    assert torch.equal(opened.sentences(["red kite"]).tokens[0], own.sentences(["red kite"]).tokens[0])
    assert torch.equal(opened.pictures(PICTURES).patches[1], own.pictures(PICTURES).patches[1])


CACHED = """
import sys
from teran_nb.zoo.opening import family_of
try: print(family_of("somebody/clip").fingerprint)
except Exception as e: print(type(e).__name__, e)
"""


@pytest.mark.slow
def test_a_model_in_the_cache_of_the_hub(models, tmp_path):
    repository = tmp_path / "hub/models--somebody--clip"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("a" * 40)
    shutil.copytree(models["clip"], repository / "snapshots" / ("a" * 40))
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    def opened():
        done = subprocess.run([sys.executable, "-c", CACHED], env=environment, cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()
    assert opened() == family_of(models["clip"]).fingerprint
    (repository / "snapshots" / ("a" * 40) / "preprocessor_config.json").unlink()
    assert opened().startswith("FileNotFoundError no clip with its image processor under the name 'somebody/clip'")


DEVICE = """
import sys
from pathlib import Path
import numpy as np
import torch
from PIL import Image
sys.path.insert(0, "tests")
import pretend
from teran_nb.zoo.opening import family_of
from teran_nb.zoo.small_models import TOY_FAMILIES
pictures = [Image.fromarray(np.random.default_rng(w).integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in ((90, 40), (40, 90))]
texts = ["A red kite", "dog"]
held = pretend.register()
for kind in TOY_FAMILIES:
    family = family_of(Path(sys.argv[1]) / kind)
    here, read = [family.pictures(pictures, mode) for mode in family.modes], family.sentences(texts)
    with pretend.Pretending():
        family.model.to(pretend.GPU)
        there, sent = [family.pictures(pictures, mode) for mode in family.modes], family.sentences(texts)
        assert there[0].whole.device == there[0].patches[0].device == sent.tokens[0].device == pretend.GPU
        if family.word_source == "prompts": family.score(there[0].whole, sent.whole)
        for a, b in zip(here, there): assert torch.allclose(a.patches[1], b.patches[1].cpu(), atol=1e-5)
        assert torch.allclose(read.tokens[0], sent.tokens[0].cpu(), atol=1e-5)
print(len(TOY_FAMILIES))
"""


@pytest.mark.slow
def test_on_a_pretended_device(models):
    "Nothing stays behind on the CPU (tests/pretend.py)."
    folder = models["clip"].parent
    done = subprocess.run([sys.executable, "-c", DEVICE, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "15", done.stderr[-2000:]
