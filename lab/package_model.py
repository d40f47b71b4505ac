"""A trained model becomes a model of the package: `python -m lab.package_model RUN NAME CARD.md DATA`.

The folder teran_nb/models/NAME gets what was learned, in half precision and without what lies in a wheel, what the
scores of these weights say about absent things (fitted on the validation part of DATA), and the card.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from teran_nb.core.files import load_tensors, project_path, save_tensors, write_json
from teran_nb.data.provenance import save_provenance
from teran_nb.model.presence import fit_presence
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import PACKAGED, load_model

LIMIT = 10 * 2**20  # bytes of a folder in the wheel


def package(run: str, name: str, card: str, data: str) -> Path:
    "Write the folder; one that is too large for a wheel, or that brings a text encoder of its own, is refused."
    if not name.isidentifier():
        raise SystemExit(f"{name!r} is no name of a model; use letters, digits and _")
    model = load_model(run)
    val = load_data(data).val
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / name
        model.save(made)
        if (made / "text").exists():
            raise SystemExit(f"{run} brings its own text encoder; train it with one of a wheel")
        weights = load_tensors(made / "model.safetensors", "save it again")
        weights = {key: weight.half() if weight.is_floating_point() else weight for key, weight in weights.items()}
        save_tensors(weights, made / "model.safetensors")
        shipped = load_model(made)
        fitted = fit_presence(shipped, shipped.encode_images(val), val.captions)
        if fitted is None:
            raise SystemExit(f"the validation part of {data} is too small to learn what scores say about absent things")
        write_json(made / "presence.json", fitted.values)
        record = shipped.provenance
        if record.spec and record.spec[1].get("mirrored"):  # for a user's own pictures these views are not worth twice the time
            record = replace(record, spec=(record.spec[0], record.spec[1] | {"mirrored": False}))
        if model.vision is not None and record.extractor == model.vision.extractor:  # in half precision it has another name
            record = replace(record, extractor=shipped.vision.extractor)
        save_provenance(record, made)
        shutil.copyfile(project_path(card), made / "README.md")
        size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
        if size > LIMIT:
            raise SystemExit(f"{run} takes {size / 2**20:.1f} MiB, more than {LIMIT / 2**20:.0f}")
        folder, beside = PACKAGED / name, PACKAGED / f".{name}"  # the former model stays until the new one is complete
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(made, beside)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    print(f"{folder}: {size / 2**20:.1f} MiB, fingerprint {load_model(name).fingerprint[:12]}")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for argument in ("run", "name", "card", "data"):
        parser.add_argument(argument)
    package(**vars(parser.parse_args()))
