#!/usr/bin/env python3
"""Writes pictures.json: small JPEG and PNG files of many kinds, and Pillow's pixels for each.

Needs Pillow 13 and NumPy, and writes to the path given, or to the committed file. "file" is the file in hexadecimal, "rgb" the
bytes of `Image.open(file).convert("RGB")`, row by row, which is what torchvision's ImageFolder loads. Kinds that Pillow
does not write (16 bits a colour, YCCK, CMYK without Adobe's segment) are made here from others, byte by byte.

Left out: broken files, which are made in the tests.
"""

import io
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
from PIL import Image

OUT = pathlib.Path(__file__).with_name("pictures.json")
WIDTH, HEIGHT = 21, 13  # no multiples of a JPEG's blocks


def main():
    picture = drawn()
    files = jpegs(picture) | pngs(picture)
    kinds = [dict(name=name, file=data.hex(), **loaded(data)) for name, data in files.items()]
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    lines = ",\n".join(json.dumps(kind) for kind in kinds)
    out.write_text(f'{{"pillow": "{Image.__version__}", "pictures": [\n{lines}\n]}}\n')
    print(f"{len(kinds)} pictures, {out.stat().st_size} bytes: {out}")


def drawn():
    """Slopes in three directions, with a dark corner that has an edge."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    colours = np.stack([40 + 9 * x, 230 - 12 * y, 60 + 5 * x + 6 * y], axis=-1)
    colours[8:, :9] = [20, 60, 90]
    return Image.fromarray(colours.astype(np.uint8))


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def jpegs(picture):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    cmyk = saved(picture.convert("CMYK"), "jpeg", quality=95)
    adobe = cmyk.index(b"Adobe")
    return {
        "jpeg 4:4:4": saved(picture, "jpeg", quality=92, subsampling=0),
        "jpeg 4:2:2": saved(picture, "jpeg", quality=92, subsampling=1),
        "jpeg 4:2:0": saved(picture, "jpeg", quality=92, subsampling=2),
        "jpeg grey": saved(picture.convert("L"), "jpeg", quality=92),
        "jpeg progressive": saved(picture, "jpeg", quality=92, progressive=True, subsampling=0),
        "jpeg with restarts": saved(picture, "jpeg", quality=92, restart_marker_rows=1, subsampling=0),
        "jpeg turned by exif": saved(picture, "jpeg", quality=92, exif=exif, subsampling=0),
        "jpeg of rgb": saved(picture, "jpeg", quality=92, keep_rgb=True),
        "jpeg with bytes after its end": saved(picture, "jpeg", quality=92, subsampling=0) + b"more of the camera's",
        "jpeg cmyk": cmyk,
        "jpeg cmyk not by adobe": cmyk[: adobe - 4] + cmyk[adobe + 12 :],
        "jpeg ycck": cmyk[: adobe + 11] + b"\x02" + cmyk[adobe + 12 :],
    }


def pngs(picture):
    grey, alpha = picture.convert("L"), Image.linear_gradient("L").resize((WIDTH, HEIGHT))
    seen_through, grey_through, few = picture.copy(), grey.copy(), picture.quantize(11)
    seen_through.putalpha(alpha)
    grey_through.putalpha(alpha)
    return {
        "png rgb": saved(picture, "png"),
        "png grey": saved(grey, "png"),
        "png rgba": saved(seen_through, "png"),
        "png grey with alpha": saved(grey_through, "png"),
        "png of 1 bit": saved(picture.convert("1"), "png"),
        "png palette": saved(picture.quantize(60), "png"),
        "png palette of 4 bits": saved(few, "png", bits=4),
        "png palette seen through": saved(few, "png", transparency=3),
        "png rgb with one colour seen through": saved(picture, "png", transparency=(20, 60, 90)),
        "png grey of 2 bits": png(2, 0, packed(np.asarray(grey) >> 6)),
        "png rgb of 16 bits": png(16, 2, wide(np.asarray(picture))),
        "png rgba of 16 bits": png(16, 6, wide(np.asarray(seen_through))),
        "png grey of 16 bits": png(16, 0, wide(np.asarray(grey))),
    }


def wide(values):
    """Rows of big-endian 16-bit values whose lower bytes are not the upper ones."""
    return [row.tobytes() for row in (values.astype(np.uint16) * 256 + 255 - values).astype(">u2")]


def packed(values):
    """Rows of four values to a byte."""
    padded = np.pad(values, ((0, 0), (0, -WIDTH % 4))).reshape(HEIGHT, -1, 4)
    return [row.tobytes() for row in (padded << np.array([6, 4, 2, 0])).sum(axis=-1).astype(np.uint8)]


def png(bits, colour, rows):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def loaded(data):
    rgb = Image.open(io.BytesIO(data)).convert("RGB")
    return {"width": rgb.width, "height": rgb.height, "rgb": rgb.tobytes().hex()}


if __name__ == "__main__":
    main()
