"""Writes crates/lockstep/golden/vision.json: what torchvision's transforms make of PIL pictures, for `lockstep::data::vision`.

Run it with a Python that has torch 2.11, torchvision 0.26, Pillow 13 and numpy:

    python scripts/golden/vision.py

Pictures come from a formula that the test repeats. Results of integer work are stored as the CRC-32 of their bytes, row by
row; those of resampling whole, since they may differ by one grey level.
"""

import json
import pathlib
import zlib

import numpy
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import autoaugment, functional

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/lockstep/golden/vision.json"

# Width, height: one pixel, fewer than a 3 x 3 filter takes, odd ones, and one of which histograms have steps.
SIZES = [(1, 1), (2, 3), (17, 13), (64, 33)]
LEVELS = 10
SPACE = transforms.AutoAugment()._augmentation_space
# Sizes of pictures and what they are resized to: smaller, larger, both.
RESIZED = [((17, 13), (8, 5)), ((64, 33), (24, 24)), ((2, 3), (5, 4)), ((64, 33), (80, 11)), ((1, 1), (3, 2))]
CROPS = [(0, 0), (8, 8), (3, 5), (4, 4), (7, 0)]  # left, top in the padded picture
NORMALIZED = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def picture(width, height, smooth):
    """Noise over all values, or a gradient over some of them."""
    y, x, c = numpy.mgrid[0:height, 0:width, 0:3]
    noise = (x * x * 3 + y * y * 5 + x * y * 7 + c * 91 + x * 17 + y * 29) % 256
    gradient = 40 + c * 10 + (x * 120) // width + (y * 50) // height
    return Image.fromarray((gradient if smooth else noise).astype(numpy.uint8), "RGB")


PICTURES = [picture(width, height, smooth) for width, height in SIZES for smooth in (False, True)]


def crc32(result):
    return zlib.crc32(result.tobytes())


def magnitudes(name, image):
    """Every strength that torchvision's table has for the operation."""
    table, signed = SPACE(LEVELS, (image.height, image.width))[name]
    values = [float(value) for value in table.reshape(-1)]
    return values + [-value for value in values] if signed else values


def applied(image, name, magnitude):
    return autoaugment._apply_op(image, name, magnitude, transforms.InterpolationMode.NEAREST, None)


def ops():
    """For each operation and picture: its strengths, and what each makes of it."""
    for name in SPACE(LEVELS, (1, 1)):
        strengths = [magnitudes(name, image) for image in PICTURES]
        results = [[crc32(applied(image, name, m)) for m in ms] for image, ms in zip(PICTURES, strengths)]
        yield name, {"strengths": strengths, "crc32": results}


def sub_policies(policy):
    """Every pair of a policy with both operations and with all signs, on the two largest pictures."""
    augment = transforms.AutoAugment(policy)
    for pair in augment.policies:
        made = []
        for signs in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            augment.policies = [pair]
            augment.get_params = lambda count, signs=signs: (0, torch.zeros(2), torch.tensor(signs))
            made.append([crc32(augment(image)) for image in PICTURES[-2:]])
        # A probability of 0 is not below 0: with zeros drawn, both operations happen.
        yield {"probabilities": [p for _, p, _ in pair], "crc32": made}


def main():
    resized = []
    for size, target in RESIZED:
        width, height = target
        results = [functional.resize(picture(*size, smooth), [height, width]).tobytes().hex() for smooth in (False, True)]
        resized.append({"from": size, "to": target, "pixels": results})
    image = PICTURES[-2].crop((0, 0, 32, 32))
    padded = functional.pad(image, 4)
    golden = {
        "sizes": SIZES,
        "pictures": [crc32(image) for image in PICTURES],
        "ops": dict(ops()),
        "policies": {policy.value: list(sub_policies(policy)) for policy in autoaugment.AutoAugmentPolicy},
        "crops": [{"at": at, "crc32": crc32(functional.crop(padded, at[1], at[0], 32, 32))} for at in CROPS],
        "flipped": [crc32(functional.hflip(image)) for image in PICTURES],
        "resized": resized,
        "normalized": {
            name: [
                zlib.crc32(functional.normalize(functional.to_tensor(image), mean, std).numpy().tobytes()) for image in PICTURES
            ]
            for name, (mean, std) in NORMALIZED.items()
        },
    }
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"wrote {OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
