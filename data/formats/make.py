"""Writes one tiny fixture of every foreign feature format beside itself: `python data/formats/make.py`. Every number is exact in float16, so that a round trip can be tested for equality."""
import base64, io, json, shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

SIZES = {"7": (64, 32), "42": (32, 64), "99": (128, 128)}
CLASSES = ("sky", "kite", "house", "tree")
LABELS = {n: np.array([(i*(k+1) + k) % 4 for i in range(5)]) for k, n in enumerate(SIZES)} # index of each region's class


def images():
    "Three images of five regions and eight numbers: id -> features, boxes in pixels, confidences, size."
    for k, (name, (w, h)) in enumerate(SIZES.items()):
        corner = np.array([[i, (i*k) % 4] for i in range(5)], np.float32)
        boxes = np.hstack([corner, corner + [[8*(i+1)/2, 4*(i+1)/2+k] for i in range(5)]]).astype("<f4")
        features = ((np.arange(40).reshape(5, 8)*(3+k) + k) % 17 - 8).astype("<f4")/8
        yield name, features, boxes, np.linspace(1, .5, 5, dtype="<f4"), (w, h)


def b64(a): return base64.b64encode(np.ascontiguousarray(a, "<f4").tobytes()).decode()
def unit(boxes, size): return boxes/np.array([*size, *size], np.float32)
def lines(path, rows): path.parent.mkdir(parents=True, exist_ok=True); path.write_text("".join("\t".join(map(str, r)) + "\n" for r in rows))


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def tsv(out):
    rows = [(n, w, h, 5, b64(b), b64(f)) for n, f, b, _, (w, h) in images()]
    lines(fresh(out/"bottom-up")/"test.tsv.0", rows[:2])
    lines(out/"bottom-up/test.tsv.1", rows[2:])
    ids = {n: base64.b64encode(v.astype("<i8").tobytes()).decode() for n, v in LABELS.items()}
    lines(out/"lxmert.tsv", [(n, h, w, ids[n], b64(c), ids[n], b64(c), 5, b64(b), b64(f)) for n, f, b, c, (w, h) in images()])
    (out/"classes.txt").write_text("".join(f"{c}\n" for c in CLASSES))


def vinvl(out):
    def objects(n, b, c): return [{"class": CLASSES[j], "conf": float(k), "rect": x.tolist()} for j, x, k in zip(LABELS[n], b, c)]
    def place(b, size): u = unit(b, size); return np.hstack([u, u[:, 2:]-u[:, :2]])
    o = fresh(out/"vinvl")
    lines(o/"test.feature.tsv", [(n, json.dumps({"num_boxes": 5, "features": b64(np.hstack([f, place(b, s)]))})) for n, f, b, c, s in images()])
    lines(o/"test.label.tsv", [(n, json.dumps(objects(n, b, c))) for n, f, b, c, s in images()])
    lines(o/"test.hw.tsv", [(n, json.dumps([{"height": h, "width": w}])) for n, f, b, c, (w, h) in images()])
    (o/"test.yaml").write_text("feature: test.feature.tsv\nlabel: test.label.tsv\nhw: test.hw.tsv\n")
    o, whole = fresh(out/"oscar"), [(n, f, {"objects": objects(n, b, c), "image_w": w, "image_h": h}) for n, f, b, c, (w, h) in images()]
    lines(o/"features.tsv", [(n, 5, b64(f)) for n, f, _ in whole])
    lines(o/"predictions.tsv", [(n, json.dumps(x)) for n, _, x in reversed(whole)])
    lines(fresh(out/"scene-graph")/"predictions.tsv", [(n, json.dumps(x | {"objects": [k | {"feature": b64(v)} for k, v in zip(x["objects"], f)]})) for n, f, x in whole])


def folders(out):
    a, b, z = (fresh(out/p) for p in ("teran/bu_att", "teran/bu_box", "npz"))
    for n, f, boxes, c, s in images():
        np.savez_compressed(a/f"{n}.npz", feat=f)
        np.save(b/f"{n}.npy", boxes)
        np.savez_compressed(z/f"{n}.npz", **uniter(n, f, boxes, c, s))
    (out/"teran/sizes.json").write_text(json.dumps({"images": [{"id": int(n), "width": w, "height": h} for n, (w, h) in SIZES.items()]}))
    (out/"sizes.csv").write_text("id,width,height\n" + "".join(f"{n},{w},{h}\n" for n, (w, h) in SIZES.items()))
    o = fresh(out/"scan")
    np.save(o/"test_ims.npy", np.repeat(np.stack([f for _, f, *_ in images()]), 5, axis=0))
    (o/"test_caps.txt").write_text("".join(f"caption {i} of {n}\n" for n in SIZES for i in range(5)))
    (o/"test_ids.txt").write_text("".join(f"{n}\n" for n in SIZES for i in range(5)))


def uniter(n, f, boxes, c, size):
    "Its soft labels begin with the background, here always second."
    u, soft = unit(boxes, size), np.eye(5)[LABELS[n] + 1]*.75
    soft[:, 0] = .25
    return {"features": f.astype("<f2"), "norm_bb": np.hstack([u, u[:, 2:]-u[:, :2]]).astype("<f2"), "conf": c.astype("<f2"), "soft_labels": soft.astype("<f2")}


def databases(out):
    import h5py, lmdb, lz4.frame, msgpack
    def array(a): return {b"nd": True, b"type": a.dtype.str, b"kind": b"", b"shape": a.shape, b"data": a.tobytes()}
    def packed(i, d):
        if i == 2: file = io.BytesIO(); np.savez_compressed(file, **d); return file.getvalue()
        data = msgpack.packb({k: array(v) for k, v in d.items()}, use_bin_type=True)
        return lz4.frame.compress(data) if i else data
    with lmdb.open(str(fresh(out/"uniter")), map_size=1 << 20, lock=False) as env, env.begin(write=True) as txn: # one value plain, one by lz4, one as npz
        for i, (n, f, b, c, s) in enumerate(images()): txn.put(f"coco_{int(n):012}.npz".encode(), packed(i, uniter(n, f, b, c, s)))
        txn.put(b"__keys__", b"[]")
    (out/"uniter/lock.mdb").unlink(missing_ok=True)
    names, f, b, c, s = zip(*images())
    with h5py.File(out/"arrays.h5", "w", track_order=False) as h:
        for k, v in {"features": np.stack(f), "boxes": np.stack(b), "num_boxes": [5]*3, "objects_id": np.stack(list(LABELS.values())), "image_ids": [int(n) for n in names], "img_w": [w for w, _ in s], "img_h": [h for _, h in s]}.items(): h[k] = v
    with h5py.File(out/"groups.h5", "w") as h:
        for n, f, b, c, (x, y) in images():
            for k, v in {"features": f, "boxes": b, "img_w": x, "img_h": y, "obj_conf": c, "obj_ids": LABELS[n]}.items(): h[f"{n}/{k}"] = v


def captions(out):
    "The drawn scenes of `captions/karpathy.json` in two more layouts; the nouns are the phrases of Flickr30k Entities."
    found, o = json.loads((out/"karpathy.json").read_text())["images"], fresh(out/"entities")
    rows = pd.DataFrame([{"file_name": f"{i['id']}.jpg", "text": s["raw"]} for i in found for s in i["sentences"]])
    rows.to_json(out/"captions.jsonl", orient="records", lines=True, force_ascii=False)
    rows.to_excel(out/"captions.xlsx", index=False)
    lines(out/"flickr.token", [(f"{i['id']}.jpg#{k}", s["raw"]) for i in found for k, s in enumerate(i["sentences"])])
    for i in found:
        chains = {}
        def marked(s):
            text = s["raw"]
            for a, b, kind, boxes in reversed(s["links"]):
                if kind == "noun": text = f"{text[:a]}[/EN#{chains.setdefault(str(boxes), (len(chains)+1, boxes))[0]}/other {text[a:b]}]{text[b:]}"
            return text
        lines(o/"Sentences"/f"{i['id']}.txt", [(marked(s),) for s in i["sentences"]])
        things = "".join(f"<object><name>{k}</name><bndbox>" + "".join(f"<{n}>{v+1:g}</{n}>" for n, v in zip(("xmin", "ymin", "xmax", "ymax"), b)) + "</bndbox></object>" for k, boxes in chains.values() for b in boxes)
        (o/"Annotations").mkdir(exist_ok=True)
        (o/"Annotations"/f"{i['id']}.xml").write_text(f"<annotation><filename>{i['id']}.jpg</filename><size><width>{i['width']:g}</width><height>{i['height']:g}</height></size>{things}</annotation>\n")
    (o/"train.txt").write_text("".join(f"{i['id']}\n" for i in found))


def check(rows, read_id=str):
    "Compare the rows of a reader with `images()`; gives the first row, its file as a path in this folder."
    truth = {name: (features, boxes, size) for name, features, boxes, _, size in images()}
    seen = []
    for row in rows:
        name, found = read_id(row.image_id), row.decode()
        features, boxes, size = truth[name]
        np.testing.assert_array_equal(found.features, features)
        scale = np.array([*size, *size]) if found.size == (1, 1) else 1
        if found.boxes is not None: np.testing.assert_array_equal(found.boxes*scale, boxes)
        assert found.size in (None, (1, 1), size), f"{row}: {found.size} is not {size}"
        if found.classes is not None:
            assert [CLASSES.index(c) if isinstance(c, str) else c for c in found.classes.tolist()] == LABELS[name].tolist(), row
        seen.append((name, row))
    assert sorted(name for name, _ in seen) == sorted(truth)
    first = seen[0][1]
    return replace(first, file=first.file.relative_to(Path(__file__).parent))


def make(out):
    for part in (tsv, vinvl, folders, databases): part(Path(out))


if __name__ == "__main__": make(Path(__file__).parent); captions(Path(__file__).parents[1]/"captions")
