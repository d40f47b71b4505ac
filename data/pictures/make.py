"""Writes pictures that are hard to read into a new folder: `python data/pictures/make.py FOLDER`. They are not kept here, because one of them has 20 million pixels."""
import struct, sys, zlib
from pathlib import Path

import numpy as np
from PIL import Image

from teran_nb.data.pictures import sample_picture


def bomb():
    "A PNG of a few bytes whose header claims 400 million pixels."
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0"*99)) + chunk(b"IEND", b"")


def hard_pictures(folder):
    "Write seven files that can be read and four that cannot; their names, and whether the file can be read."
    folder = Path(folder)
    folder.mkdir()
    house = sample_picture()
    exif = Image.Exif()
    exif[0x0112] = 6 # rotate by 90 degrees
    house.rotate(90, expand=True).save(folder/"rotated.jpg", exif=exif, quality=95)
    house.convert("CMYK").save(folder/"print.jpg", quality=95)
    Image.fromarray(np.asarray(house.convert("L")).astype(np.uint16)*257).save(folder/"scan.png")
    house.convert("P").save(folder/"palette.png", transparency=0)
    house.convert("RGBA").save(folder/"cut-out.webp", lossless=True)
    Image.new("1", (1, 1)).save(folder/"pixel.png")
    Image.linear_gradient("L").resize((20_000, 1000)).save(folder/"long.jpg")
    jpeg = (folder/"rotated.jpg").read_bytes()
    (folder/"cut.jpg").write_bytes(jpeg[:len(jpeg)//2])
    (folder/"page.jpg").write_text("<html>404</html>")
    Image.new("F", (4, 4)).save(folder/"float.tif")
    (folder/"bomb.png").write_bytes(bomb())
    damaged = {"cut.jpg", "page.jpg", "float.tif", "bomb.png"}
    return {path.name: path.name not in damaged for path in sorted(folder.iterdir())}


if __name__ == "__main__": print(hard_pictures(sys.argv[1]))
