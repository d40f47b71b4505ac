"""Write CREDITS.md from photos.json: `python data/photos/make.py`."""
import json
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = {
    "Crossmodal-3600": "[Crossmodal-3600](https://google.github.io/crossmodal-3600/) (Thapliyal et al., 2022)",
    "COCO val2017": "[COCO](https://cocodataset.org), val2017 (Lin et al., 2014)"}
HEAD = """# Credits of the photographs

Written by `python data/photos/make.py` from `photos.json`; do not edit it.

{count} photographs, each made smaller (the longer side has at most 448 pixels) and not changed otherwise. Each keeps the licence in its row, under which you may use and change it if you name its author; a changed photograph under CC BY-SA has to keep that licence. COCO does not name authors, so its rows name the page of the photograph, which does.

| from | photographs | what the captions and boxes are |
|---|--:|---|
{sources}

The captions of both, and the boxes of COCO, are CC BY 4.0.

`teran_nb/photos/imagenet_classes.txt`, the names of ImageNet's 1,000 classes, is the list of [torchvision](https://github.com/pytorch/vision), BSD 3-Clause; its licence lies beside it.

| file | author or page | from | licence |
|---|---|---|---|
"""

def credits(
    photos:list, # Content of `photos.json`
) -> str: # Markdown
    "The page of credits."
    counts = {source: sum(photo["source"] == source for photo in photos) for source in SOURCES}
    kinds = {"Crossmodal-3600": "two English captions, others in six languages; no boxes",
             "COCO val2017": "five English captions; boxes of the things of COCO's 80 classes"}
    table = "\n".join(f"| {SOURCES[source]} | {count} | {kinds[source]} |" for source,count in counts.items())
    rows = []
    for photo in photos:
        author = photo["author"].replace("|", "\\|") or photo["page"].removeprefix("https://www.")
        rows.append(f"| `{photo['file']}` | [{author}]({photo['page']}) | {photo['source']} | "
                    f"[{photo['license']}]({photo['license_url']}) |")
    return HEAD.format(count=len(photos), sources=table) + "\n".join(rows) + "\n"

if __name__ == "__main__":
    photos = json.loads((FOLDER/"photos.json").read_text(encoding="utf8"))
    (FOLDER/"CREDITS.md").write_text(credits(photos), encoding="utf8")
