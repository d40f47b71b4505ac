"""Models in the layouts of other libraries: OpenCLIP's stored outputs, sentence-transformers, files of OpenAI, names of the hub."""
import json
import shutil

import pytest
import torch
import transformers
from other_libraries import LATE, OPEN_CLIP, PICTURES, STORED, TEXTS, TOWERS, largest_difference, late_difference, late_folder, late_parts, open_clip_folder

from teran_nb.core.files import read_json, write_json
from teran_nb.training.runs import load_model
from teran_nb.zoo.families import unit_vectors
from teran_nb.zoo.opening import family_of
from teran_nb.zoo.small_models import toy_folder

OUTPUTS = json.loads(STORED.read_text())


@pytest.mark.parametrize("kind", OPEN_CLIP)
def test_images_texts_and_logits_are_those_of_open_clip(kind, tmp_path):
    if kind in TOWERS:
        pytest.importorskip("timm", reason="towers of timm are compared where `pip install -e '.[timm]'` was run", exc_type=(ImportError, RuntimeError))
    stored = OUTPUTS["open_clip"][kind]
    family = family_of(open_clip_folder(tmp_path / kind, kind, stored["shapes"]))
    assert max(largest_difference(family, stored).values()) < 1e-5


@pytest.mark.parametrize("kind", LATE)
def test_scores_are_those_of_colpali_engine(kind, tmp_path):
    stored = OUTPUTS["colpali_engine"][kind]
    folder, _ = late_folder(tmp_path, kind, stored["shapes"])
    assert late_difference(family_of(folder), stored) < 1e-4  # sums of 22 to 59 cosines


def test_a_root_of_sentence_transformers_is_the_clip_inside(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    write_json(tmp_path / "modules.json", [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}])
    toy_folder("clip", tmp_path / "0_CLIPModel")
    family = load_model(tmp_path).family
    own = st.SentenceTransformer(str(tmp_path), device="cpu")
    assert torch.allclose(family.sentences(TEXTS).whole, unit_vectors(torch.tensor(own.encode(TEXTS))), atol=1e-5)
    assert torch.allclose(family.pictures(PICTURES).whole, unit_vectors(torch.tensor(own.encode(PICTURES))), atol=1e-5)


def cached(monkeypatch, folder, source):
    "Put a folder into the hub's cache under the name `somebody/model`, and stay offline."
    snapshot = folder / "models--somebody--model/snapshots" / ("a" * 40)
    (folder / "models--somebody--model/refs").mkdir(parents=True)
    (folder / "models--somebody--model/refs/main").write_text("a" * 40)
    shutil.copytree(source, snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(folder), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


REFUSED = {"onnx": "it is a model in ONNX only", "gguf": "quantised weights for llama.cpp", "pt": "checkpoint of another library", "h5": "weights for TensorFlow only",
           "msgpack": "weights for Flax only"}
FILES = {"h5": "tf_model.h5", "msgpack": "flax_model.msgpack"}
SETTINGS = {"quantised": ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"), "unknown": ({"model_type": "groupvit"}, "groupvit is not a known family"),
            "remote": ({"model_type": "jina_clip", "auto_map": {}}, "its code lies in the repository"),
            "wide": ({"projection_dim": 10**7}, "projection_dim 10,000,000, more than"), "large": ({"projection_dim": 10**5}, "weights, and its files hold at most")}


@pytest.mark.parametrize("kind", ["open_clip", "sentence-transformers", *REFUSED, *SETTINGS])
def test_a_layout_in_the_cache_of_the_hub(kind, tmp_path, monkeypatch):
    if kind == "open_clip":
        source = open_clip_folder(tmp_path / "source", "gelu", OUTPUTS["open_clip"]["gelu"]["shapes"])
    elif kind in REFUSED:
        source = toy_folder("clip", tmp_path / "source")
        (source / "model.safetensors").rename(source / FILES.get(kind, f"model.{kind}"))
    elif kind in SETTINGS:
        source = toy_folder("clip", tmp_path / "source")
        write_json(source / "config.json", read_json(source / "config.json") | SETTINGS[kind][0])
    else:
        source = tmp_path / "source"
        toy_folder("clip", source / "0_CLIPModel")
        write_json(source / "modules.json", [{"path": "0_CLIPModel"}])
    cached(monkeypatch, tmp_path / "hub", source)
    if kind in (*REFUSED, *SETTINGS):
        with pytest.raises(ValueError, match=REFUSED.get(kind) or SETTINGS[kind][1]):
            load_model("somebody/model")
    else:
        assert load_model("somebody/model").family.fingerprint == family_of(source).fingerprint


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_torchscript_of_openai_is_named(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "ViT-B-32.pt")
    with pytest.raises(ValueError, match="TorchScript archive.*open by their name on the hub"):
        load_model(tmp_path / "ViT-B-32.pt")


def test_what_a_multi_vector_folder_sets_and_nobody_reads_is_said(tmp_path):
    folder, _ = late_folder(tmp_path, "idefics3", OUTPUTS["colpali_engine"]["idefics3"]["shapes"])
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "search: ", "document": ""}})
    with pytest.warns(UserWarning, match="sets prompts for query, which are not read here"):
        family_of(folder)
    (folder / "1_Dense").mkdir()
    write_json(folder / "1_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"})
    with pytest.raises(ValueError, match="1_Dense/config.json applies .*Tanh behind its linear layer"):
        family_of(folder)


def test_qwen3_vl_embedding_is_the_state_of_the_last_token(tmp_path):
    "Its vectors are those of transformers' Qwen3VLModel behind the published prompt, one by one; a chat model is refused."
    config, images, tokenizer = late_parts("qwen3_vl")
    torch.manual_seed(0)
    model = transformers.Qwen3VLModel(config).eval()
    for part in (model, images, tokenizer):
        part.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="it has no linear layer"):
        family_of(tmp_path)
    write_json(tmp_path / "modules.json", [{"path": ""}, {"path": "1_Pooling"}])
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling/config.json", {"pooling_mode_lasttoken": True})
    encoder = load_model(tmp_path)
    family = encoder.family
    seen, read = family.pictures(PICTURES).whole, family.sentences(TEXTS).whole
    def last(instruction, content, **more):
        text = f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        with torch.no_grad():
            return unit_vectors(model(**family.processor(text=[text], return_tensors="pt", **more)).last_hidden_state[0, -1])
    for picture, vector in zip(PICTURES, seen):
        own = last("Represent the user's input.", "<|vision_start|><|image_pad|><|vision_end|>", images=[picture])
        assert torch.allclose(own, vector, atol=1e-5)
    for text, vector in zip(TEXTS, read):
        assert torch.allclose(last("Retrieve images or text relevant to the user's query.", text), vector, atol=1e-5)
    alignment = encoder.align(PICTURES[0], TEXTS[0])
    assert alignment.boxes.tolist() == [[0, 0, 90, 40]] and "shows no places" in encoder.info.note
    with pytest.raises(ValueError, match="ranks only"):
        load_model(tmp_path, dual={"words": "tokens"})
