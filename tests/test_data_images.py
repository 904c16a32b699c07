"""Images: found, augmented as a pure function of the order, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.data.dataset import Batch, BatchSpec
from zoo.data.images.augment import centre_crop, mirror, normalise, random_resized_crop, resize
from zoo.data.images.dataset import ImageData, ImageDataset
from zoo.data.images.digits import DigitsData, DigitsDataset
from zoo.data.images.files import open_image_files
from zoo.models import GPTConfig, ResNetConfig
from zoo.nn.loss import IGNORE_INDEX
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError, DataError

CLASSIFIER = ResNetConfig(depth=18, classes=3)
GREY: dict[str, Any] = {"mean": (0.5,), "std": (0.25,)}


def picture(seed: int, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A smooth picture, so that JPEG and resizing change little."""
    noise = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bilinear")[0]
    return (smooth * 255).byte().permute(1, 2, 0).numpy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 5, 4 and 3 images of different sizes, to train on and to evaluate on."""
    for part in ("train", "validation"):
        for label, name in enumerate(("ant", "bee", "cat")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(5 - label):
                pixels = picture(10 * label + i, 40 + i, 50 - i)
                suffix = ("png", "jpg")[i % 2]
                Image.fromarray(pixels).save(tmp_path / part / name / f"{i}.{suffix}")
    return tmp_path


def images(folder: Path, **fields: Any) -> ImageDataset:
    settings = {"train": str(folder / "train"), "validation": str(folder / "validation"), "size": 16}
    return ImageData(**{**settings, **fields}).prepare(CLASSIFIER)


def assert_equal(left: Batch, right: Batch) -> None:
    assert [t.dtype for t in left] == [torch.float32, torch.int64]
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def test_a_batch_depends_on_seed_and_step_alone(folder: Path) -> None:
    """Any number of threads and of ranks, any history, gives the same batch."""
    one, other = images(folder, workers=1), images(folder, workers=4)
    for step in (0, 1, 7):
        whole = one.train_batch(BatchSpec(3, step, 8))
        assert whole[0].shape == (8, 3, 16, 16)
        assert_equal(whole, other.train_batch(BatchSpec(3, step, 8)))
        halves = [other.train_batch(BatchSpec(3, step, 8, rank, 2)) for rank in range(2)]
        assert_equal(whole, (torch.cat([h[0] for h in halves]), torch.cat([h[1] for h in halves])))
    assert not torch.equal(one.train_batch(BatchSpec(3, 0, 8))[0], one.train_batch(BatchSpec(4, 0, 8))[0])


def test_an_epoch_has_every_image_once_and_the_next_cuts_it_out_elsewhere(folder: Path) -> None:
    dataset = images(folder, mirror=False)
    epochs = [dataset.train_batch(BatchSpec(0, step, 12)) for step in range(2)]
    for _, labels in epochs:
        assert sorted(labels.tolist()) == [0] * 5 + [1] * 4 + [2] * 3
    first, second = (torch.sort(pixels.flatten(1).sum(1)).values for pixels, _ in epochs)
    assert not torch.isclose(first, second).any()


def test_validation_is_the_middle_of_every_image(folder: Path) -> None:
    """Against Pillow: resize so that the crop is 7/8 of the shorter side, cut, normalise."""
    dataset = images(folder, size=14)
    batches = list(dataset.validation_batches(BatchSpec(0, 5, 5), 100) or ())
    assert [len(labels) for _, labels in batches] == [5, 5, 2]
    file = folder / "validation/ant/0.png"
    with Image.open(file) as image:  # 50 x 40 pixels
        small = np.asarray(image.resize((20, 16), Image.Resampling.BILINEAR), np.float32)[1:15, 3:17] / 255
    expected = (small - np.array(dataset.data.mean)) / np.array(dataset.data.std)
    found = batches[0][0][0].permute(1, 2, 0).double().numpy()
    assert np.abs(found - expected).max() < 0.02, "Pillow rounds to whole numbers of 255"
    assert images(folder, validation=None).validation_batches(BatchSpec(0, 0, 5), 1) is None


def test_cut_outs_have_the_sizes_they_should() -> None:
    """Where every pixel says where it is, the corners of a cut-out say how large it was."""
    rows, columns = 200, 200
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    areas, ratios = [], []
    for seed in range(500):
        cut = random_resized_crop(torch.stack((y, x)), 64, 0.08, np.random.default_rng(seed))
        assert cut.shape == (2, 64, 64)
        # Resized by n / 64, the outermost of n pixels are n - n / 64 apart.
        height, width = ((cut[i].max() - cut[i].min()).item() * 64 / 63 for i in (0, 1))
        areas.append(height * width / (rows * columns))
        ratios.append(width / height)
    assert 0.07 < min(areas) < 0.12
    assert 0.85 < max(areas) < 1.01
    assert 0.7 < min(ratios) < 0.8
    assert 1.28 < max(ratios) < 1.4
    assert abs(float(np.mean(np.log(ratios)))) < 0.03


def test_where_no_cut_out_fits_it_is_the_middle() -> None:
    wide = torch.arange(300.0).expand(1, 10, 300)
    cut = random_resized_crop(wide, 8, 1.0, np.random.default_rng(0))
    assert cut.shape == (1, 8, 8)
    assert 142 < cut.min() < cut.max() < 157, "13 of 300 columns: the ratio 4 / 3 of 10 rows"


def test_mirror_and_normalise() -> None:
    image = torch.arange(6.0).view(1, 2, 3)
    seen = {tuple(mirror(image, np.random.default_rng(seed)).flatten().tolist()) for seed in range(9)}
    assert seen == {(0, 1, 2, 3, 4, 5), (2, 1, 0, 5, 4, 3)}
    both = normalise(torch.ones(2, 1, 1), (0.5, 1.0), (0.25, 3.0))
    assert both.flatten().tolist() == [2, 0]
    assert resize(image, (4, 6)).shape == (1, 4, 6)
    assert centre_crop(image, 2, 1.0).shape == (1, 2, 2)


def arrays(path: Path, shape: tuple[int, ...] = (6, 12, 10), **changes: Any) -> Path:
    """An .npz file of images with labels 0, 1, 2, 0, 1, 2."""
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.savez(path, **{"images": pixels, "labels": np.arange(6) % 3, **changes})
    return path


def test_arrays(tmp_path: Path) -> None:
    path = arrays(tmp_path / "grey.npz")
    model = ResNetConfig(depth=18, classes=3, channels=1)
    dataset = ImageData(train=str(path), validation=str(path), size=10, centre=1.0, **GREY).prepare(model)
    pixels, labels = next(iter(dataset.validation_batches(BatchSpec(0, 0, 6), 1) or ()))
    stored = torch.from_numpy(np.load(path)["images"])[:, 1:11]
    torch.testing.assert_close(pixels, (stored.unsqueeze(1) / 255 - 0.5) / 0.25)
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert open_image_files(str(arrays(tmp_path / "colour.npz", (6, 4, 4, 3)))).read(0).shape == (3, 4, 4)


def test_the_fingerprint_knows_images_and_settings(folder: Path) -> None:
    before = images(folder).fingerprint
    assert images(folder, workers=2).fingerprint == before
    assert images(folder, least_area=0.5).fingerprint != before
    (folder / "train/cat/2.png").rename(folder / "train/bee/new.png")
    assert images(folder).fingerprint != before


@pytest.mark.parametrize(("share", "sizes"), [(0.9999, (1, 1796)), (0.0001, (1796, 1))])
def test_both_sides_of_the_digits_have_an_image(share: float, sizes: tuple[int, int]) -> None:
    pytest.importorskip("sklearn")
    digits = DigitsDataset(share)
    held_out = digits.validation_labels
    assert held_out is not None
    assert (len(digits.train_labels), len(held_out)) == sizes
    assert torch.isfinite(digits.train_batch(BatchSpec(0, 0, 2))[0]).all()


def test_digits() -> None:
    """Scikit-learn's, normalised, the last fifth held out."""
    dataset = DigitsData().prepare(ResNetConfig(depth=18, classes=10, channels=1))
    pixels, labels = (torch.cat(part) for part in zip(*all_of_epoch(dataset), strict=True))
    assert pixels.shape == (1438, 1, 8, 8)
    assert (pixels.mean().abs() < 1e-5) and (pixels.std() - 1).abs() < 1e-5
    assert labels.bincount().min() > 130
    held_out = list(dataset.validation_batches(BatchSpec(0, 0, 100), 100) or ())
    assert sum(len(labels) for _, labels in held_out) == 359


def all_of_epoch(dataset: Any) -> list[Batch]:
    return [dataset.train_batch(BatchSpec(0, step, 719)) for step in range(2)]


def broken(folder: Path, what: str) -> dict[str, Any]:
    """Data that cannot be used."""
    path = folder / "file.npz"
    train, cat = folder / "train", folder / "train/cat"
    if what == "nothing":
        return {"train": str(folder / "nowhere")}
    if what == "no class":
        return {"train": str(cat)}
    if what == "empty class":
        (train / "dog").mkdir()
    elif what == "other class":
        (folder / "validation/cat").rename(folder / "validation/dog")
    elif what == "fewer classes":
        (folder / "validation/bee").rename(folder / "bee")
    elif what == "not an image":
        (cat / "0.png").write_bytes(b"no")
    elif what == "floats":
        return {"train": str(arrays(path, images=np.zeros((6, 4, 4))))}
    elif what == "negative":
        return {"train": str(arrays(path, labels=np.arange(6) - 1))}
    elif what == "array missing":
        np.savez(path, images=np.zeros(3))
        return {"train": str(path)}
    elif what == "no archive":
        path.write_bytes(b"no")
        return {"train": str(path)}
    elif what == "grey":
        return {"train": str(arrays(path)), "validation": None}
    elif what == "grey validation":
        return {"validation": str(arrays(path))}
    elif what == "two classes":
        (cat / "0.png").parent.rename(folder / "cat")
        return {"validation": None}
    return {}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "nowhere: expected a folder with a folder for each class, or an .npz file"),
        ("no class", "cat: no image; expected a folder for each class"),
        ("empty class", "dog: no image"),
        ("other class", r"validation: class 2 is 'dog', but in .*train it is 'cat'"),
        ("fewer classes", r"validation: class 1 is 'cat', but in .*train it is 'bee'"),
        ("not an image", r"0.png: not an image that can be read"),
        ("floats", r"expected arrays `images` .* uint8 .*, got float64 \(6, 4, 4\)"),
        ("negative", "integers from 0, got"),
        ("array missing", "expected arrays `images`"),
        ("no archive", "expected arrays `images`"),
        ("grey", r"data.mean has 3 entries, but .*file.npz has 1 channels"),
        ("grey validation", r"file.npz: images of 1 channels, but those of .*train have 3"),
        ("two classes", "data: the images have 2 classes, but model.classes is 3"),
    ],
)
def test_images_that_cannot_be_used(folder: Path, what: str, message: str) -> None:
    fields = broken(folder, what)
    with pytest.raises(DataError, match=message):
        images(folder, **fields).train_batch(BatchSpec(0, 0, 12))


def test_a_model_for_something_else() -> None:
    with pytest.raises(DataError, match="the objective is 'classification', but model 'gpt'"):
        DigitsData().prepare(GPTConfig(vocab_size=10, d_model=4, n_layers=1, n_heads=1))
    with pytest.raises(DataError, match=r"the images have 1 channels, but model\.channels is 3"):
        DigitsData().prepare(ResNetConfig(depth=18, classes=10))


@pytest.mark.parametrize(
    "field", ["std: [0.0]", "least_area: 0", "centre: 1.5", "size: 0", "workers: 0", "sise: 3"]
)
def test_impossible_settings(field: str) -> None:
    with pytest.raises(ConfigError, match=f"data.*{field.split(':')[0]}"):
        load_config({}, [f"data={{type: images, train: x, {field}}}"])


def test_reading_gives_what_was_stored(folder: Path) -> None:
    stored = torch.from_numpy(picture(0, 40, 50)).permute(2, 0, 1)
    assert torch.equal(open_image_files(str(folder / "train")).read(0), stored)


@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".png", "<u2"), (".tif", "<u2"), (".tif", ">u2"), (".ppm", "<i4")]
)
def test_16_bits_are_scaled(tmp_path: Path, suffix: str, dtype: str) -> None:
    """The brightest of 65,536 values is white, and the darker half is not."""
    grey = np.arange(0, 256, dtype=np.uint16).reshape(16, 16)
    (tmp_path / "class").mkdir()
    Image.fromarray((grey * 257).astype(dtype)).save(tmp_path / f"class/0{suffix}")
    read = open_image_files(str(tmp_path)).read(0)
    assert torch.equal(read, torch.from_numpy(grey.astype(np.uint8)).expand(3, 16, 16))


@pytest.mark.parametrize(("mode", "dtype"), [("I", np.int32), ("F", np.float32)])
def test_images_of_unknown_range_are_refused(tmp_path: Path, mode: str, dtype: type) -> None:
    (tmp_path / "class").mkdir()
    Image.fromarray(np.zeros((4, 4), dtype)).save(tmp_path / "class/0.tif")
    message = f"class/0.tif: an image of mode {mode}, whose range is unknown; expected 8 or 16 bits"
    with pytest.raises(DataError, match=message):
        open_image_files(str(tmp_path)).read(0)


def test_all_ranks_together_evaluate_every_image_once(folder: Path) -> None:
    data = images(folder)
    labels = []
    for rank in range(5):
        for _, targets in data.validation_batches(BatchSpec(0, 0, 10, rank, 5), None) or ():
            assert len(targets) in (1, 2), "ranks have batches of different sizes"
            labels += targets[targets != IGNORE_INDEX].tolist()
    assert sorted(labels) == [0] * 5 + [1] * 4 + [2] * 3
