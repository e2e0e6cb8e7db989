#!/usr/bin/env python3
"""Writes transforms.json: torchvision's transforms of pictures, for the tests of `lockstep_vision`.

Needs torchvision 0.26, Pillow 13 and numpy:

    python crates/vision/golden/transforms.py

Pictures are made by a formula that the test has, too (`picture` below). Exact operations are stored as CRC-32 of the
pixels' bytes, resized pictures as their bytes, large ones with gaps. Operations are those of
`torchvision.transforms.AutoAugment`, applied by its own code, without random draws. Left out: interpolation other
than AutoAugment's default, and the stream of Python's generator.
"""

import json
import pathlib
import zlib

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import AutoAugmentPolicy, _apply_op

OUT = pathlib.Path(__file__).with_name("transforms.json")

# (kind, width, height). 17 × 23 has fewer than 510 pixels, where Pillow's equalize goes beyond 255.
PICTURES = [
    ("noise", 1, 1), ("noise", 2, 3), ("dull", 3, 2), ("dull", 17, 23), ("noise", 20, 12), ("flat", 9, 7),
    ("dull", 101, 77), ("noise", 64, 48), ("dull", 640, 480),
]  # fmt: skip
KINDS = [
    "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness", "Posterize",
    "Solarize", "AutoContrast", "Equalize", "Invert",
]  # fmt: skip
SIGNS = [False, True]


def picture(kind, width, height):
    """Noise has all values, dull some of them and slopes, flat one colour."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    noise = (x * 7919 + y * 104729 + c * 1299709 + 12345) * 2654435761 % 2**32 >> 24
    value = {"noise": noise, "dull": 60 + 20 * c + (x * 3 // 4 + y // 2 + noise % 16) % 110, "flat": 10 + 100 * c}[kind]
    return Image.fromarray(np.broadcast_to(value, noise.shape).astype(np.uint8))


def crc(picture):
    return zlib.crc32(picture.tobytes())


def space(policy, image):
    return policy._augmentation_space(10, (image.height, image.width))


def apply(policy, image, kind, level, negative):
    """The lines of AutoAugment.forward that follow the draw."""
    magnitudes, signed = space(policy, image)[kind]
    magnitude = float(magnitudes[level].item()) if magnitudes.ndim > 0 else 0.0
    if signed and negative:
        magnitude *= -1.0
    return _apply_op(image, kind, magnitude, interpolation=policy.interpolation, fill=policy.fill)


def every_level(policy, image, kind):
    """At all ten levels, positive and negative."""
    magnitudes, signed = space(policy, image)[kind]
    levels = range(10) if magnitudes.ndim > 0 else [0]
    return [crc(apply(policy, image, kind, level, sign)) for level in levels for sign in (SIGNS if signed else [False])]


def sub_policy(policy, image, steps, negative):
    for (kind, _, level), sign in zip(steps, negative):
        image = apply(policy, image, kind, level or 0, sign)
    return crc(image)


def steps_of(name):
    return [[[kind, p, level or 0] for kind, p, level in pair] for pair in T.AutoAugment(name).policies]


def rotations(image):
    return [crc(F.rotate(image, degrees)) for degrees in (0.0, 90.0, 180.0, 270.0, -90.0, 45.0, 45.3, -12.7, 359.5, 725.0)]


def crops(image):
    padded = F.pad(image, 4, fill=0)
    return [crc(F.crop(padded, top, left, 16, 16)) for top, left in [(0, 0), (4, 4), (3, 9), (12, 1)]]


def centers(image):
    return [crc(F.center_crop(image, [height, width])) for width, height in [(5, 4), (16, 16), (31, 9), (30, 100)]]


def resized(kind, width, height, to, every):
    image = T.Resize((to[1], to[0]))(picture(kind, width, height))
    pixels = np.asarray(image)[::every, ::every]
    return {"picture": [kind, width, height], "to": to, "every": every, "pixels": pixels.tobytes().hex()}


def numbers(mean, std):
    steps = [T.ToTensor()] + ([T.Normalize(mean, std)] if mean else [])
    image = Image.fromarray(np.arange(16 * 48, dtype=np.uint32).astype(np.uint8).reshape(16, 16, 3))
    return zlib.crc32(T.Compose(steps)(image).numpy().tobytes())


def of_picture(kind, width, height):
    image = picture(kind, width, height)
    policy = T.AutoAugment()
    signs = [(first, second) for first in SIGNS for second in SIGNS]
    large = width * height > 100_000
    return {
        "picture": [kind, width, height],
        "crc32": crc(image),
        "operations": {kind: every_level(policy, image, kind) for kind in KINDS},
        "sub_policies": [] if large else [[sub_policy(policy, image, s, n) for n in signs] for s in policy.policies],
        "rotations": rotations(image),
        "crops": crops(image) if min(width, height) >= 12 else [],
        "center_crops": centers(image),
        "flip": crc(F.hflip(image)),
    }


def main():
    assert torchvision.__version__.startswith("0.26.") and PIL.__version__.startswith("13."), "see above"
    sizes = [
        ("noise", 1, 1, (4, 3), 1), ("noise", 2, 3, (5, 7), 1), ("noise", 17, 23, (8, 5), 1), ("dull", 17, 23, (40, 30), 3),
        ("noise", 64, 48, (13, 7), 1), ("noise", 64, 48, (64, 20), 4), ("noise", 20, 12, (9, 12), 1), ("dull", 101, 77, (24, 24), 1),
        ("noise", 101, 77, (24, 24), 1), ("dull", 640, 480, (244, 244), 15), ("noise", 640, 480, (244, 244), 15),
        ("noise", 640, 480, (32, 32), 2),
    ]  # fmt: skip
    golden = {
        "torchvision": torchvision.__version__.split("+")[0],
        "pillow": PIL.__version__,
        "policies": {policy.value: steps_of(policy) for policy in AutoAugmentPolicy},
        "normalize": {
            "cifar10": numbers((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
            "imagenet": numbers((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            "none": numbers(None, None),
        },
        "resized": [resized(*size) for size in sizes],
        "pictures": [of_picture(*kind) for kind in PICTURES],
    }
    lines = []
    for name, value in golden.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in value) + "\n]"
        else:
            text = json.dumps(value, separators=(",", ":"))
        lines.append(f"{json.dumps(name)}: {text}")
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
