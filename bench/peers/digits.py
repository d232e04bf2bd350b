"""Renders digits of the fonts of the system, for zoo_train.exs: `python digits.py PATH COUNT SEED`.

Writes PATH.images (f32 `[n, 1, 48, 48]`) and PATH.classes (u32). Seed 1 renders with every other font, seed 2 with all of them, so half
of the fonts of a test were not seen before. Needs `fc-list` of fontconfig, numpy and Pillow.
"""
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listed = subprocess.run(["fc-list", ":lang=en:scalable=true", "file"], check=True, capture_output=True, text=True).stdout
fonts = sorted({line.split(":")[0] for line in listed.splitlines() if line.strip()})


def has_digits(font):
    try:
        drawn = [ImageFont.truetype(font, 30).getmask(digit) for digit in "0123456789"]
    except OSError:
        return False
    return len({bytes(mask) for mask in drawn}) == 10


fonts = [font for font in fonts if has_digits(font)]
print(f"{len(fonts)} fonts, such as {', '.join(Path(font).stem for font in fonts[:3])}")
fonts = fonts[::2] if seed == 1 else fonts
random = np.random.default_rng(seed)
images, classes = np.zeros((count, 1, 48, 48), np.float32), np.arange(count, dtype=np.uint32) % 10
for i, digit in enumerate(classes):
    image = Image.new("L", (48, 48))
    font = ImageFont.truetype(fonts[random.integers(len(fonts))], int(random.integers(22, 38)))
    place = tuple(24 + random.uniform(-6, 6, 2))
    ImageDraw.Draw(image).text(place, str(digit), fill=int(random.integers(150, 256)), font=font, anchor="mm")
    image = image.rotate(random.uniform(-15, 15), Image.Resampling.BILINEAR)
    images[i, 0] = np.asarray(image, np.float32) / 255 + random.normal(0, 0.1, (48, 48))
images.tofile(f"{path}.images")
classes.tofile(f"{path}.classes")
