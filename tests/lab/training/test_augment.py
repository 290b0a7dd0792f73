"""Augmentation against loops over single images, and its distribution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.data.dataset import Split
from longtail.lab.data.sparse_rows import SparseRows
from longtail.lab.training import augment

KINDS = [(torch.uint8, torch.contiguous_format), (torch.float32, torch.channels_last)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_images(count=6, channels=3, height=8, width=8, dtype=torch.uint8, memory_format=torch.contiguous_format):
    images = torch.randint(1, 256, (count, channels, height, width), generator=seeded(1)).to(dtype)
    return images.contiguous(memory_format=memory_format)


def cropped(images, generator):
    return augment.random_crop(images, 2, generator)


def flipped(images, generator):
    return augment.random_flip(images, 0.5, generator)


def cut_out(images, generator):
    return augment.cutout(images, 3, generator)


def resized(images, generator):
    return augment.random_resized_crop(images, 8, generator=generator)


@pytest.mark.parametrize(("dtype", "memory_format"), KINDS)
@pytest.mark.parametrize("function", [cropped, flipped, cut_out, resized])
def test_every_function_keeps_the_kind_and_follows_the_generator(function, dtype, memory_format):
    images = make_images(dtype=dtype, memory_format=memory_format)
    before = images.clone()
    first, again, other = (function(images, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert (first.dtype, first.shape) == (images.dtype, images.shape)
    if function is not resized:
        assert first.is_contiguous(memory_format=memory_format)


@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(0, 5),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    padding=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_crop_is_a_window_of_the_padded_image(count, height, width, padding, seed):
    images = make_images(count, 2, height, width)
    crops = augment.random_crop(images, padding, seeded(seed))
    assert crops.shape == images.shape
    for image, crop in zip(images, crops, strict=True):
        padded = torch.zeros(2, height + 2 * padding, width + 2 * padding, dtype=torch.uint8)
        padded[:, padding : padding + height, padding : padding + width] = image
        windows = [
            padded[:, row : row + height, column : column + width]
            for row in range(2 * padding + 1)
            for column in range(2 * padding + 1)
        ]
        assert any(torch.equal(crop, window) for window in windows)


def test_every_offset_of_a_crop_is_as_likely():
    # The one bright pixel says which of the 25 windows was taken.
    images = torch.zeros(5000, 1, 5, 5, dtype=torch.uint8)
    images[:, :, 2, 2] = 1
    where = augment.random_crop(images, 2, seeded()).flatten(1).long().argmax(1).bincount(minlength=25)
    assert where.sum() == 5000
    assert ((where - 200).square() / 200).sum() < 52  # chi squared, 24 degrees of freedom, p = 0.001


def test_a_flip_mirrors_some_images_left_to_right():
    images = make_images(count=1000)
    result = augment.random_flip(images, 0.3, seeded())
    is_mirrored = (result == images.flip(3)).flatten(1).all(1)
    is_same = (result == images).flatten(1).all(1)
    assert (is_mirrored | is_same).all()
    assert 250 < is_mirrored.sum() < 350
    assert torch.equal(augment.random_flip(images, 0.0), images)
    assert torch.equal(augment.random_flip(images, 1.0), images.flip(3))


@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_cutout_is_a_square_around_a_pixel(size):
    images = make_images(count=40, height=9, width=11)
    cut = augment.cutout(images, size, seeded())
    squares = []
    for row in range(9):
        for column in range(11):
            mask = torch.zeros(9, 11, dtype=torch.bool)
            top, left = row - size // 2, column - size // 2
            mask[max(0, top) : max(0, top + size), max(0, left) : max(0, left + size)] = True
            squares.append(mask)
    for image, result in zip(images, cut, strict=True):
        is_zero = (result == 0).all(0)
        assert any(torch.equal(is_zero, square) for square in squares)
        assert torch.equal(result, image.masked_fill(is_zero, 0))


def test_a_resized_crop_of_everything_is_the_image():
    images = make_images()
    whole = augment.random_resized_crop(images, 8, smallest_area=1.0, largest_aspect=1.0, generator=seeded())
    assert torch.equal(whole, images)


def test_a_resized_crop_of_a_slope_is_a_slope():
    # Pixel columns hold their own coordinates, so a window of width w and any place has the step 16 w / 8.
    slope = torch.arange(16.0).expand(200, 1, 16, 16)
    crops = augment.random_resized_crop(slope, 8, generator=seeded())
    steps = crops.diff(dim=3)[..., 1:-1]
    assert torch.allclose(steps, steps[..., :1].expand_as(steps), atol=1e-4)
    assert steps.max() <= 2 + 1e-4
    assert steps.min() >= 2 * (0.08 * 3 / 4) ** 0.5 - 1e-4
    assert steps.std() > 0.1


def test_statistics_are_those_of_the_whole_split():
    images = make_images(count=2500, dtype=torch.uint8)
    mean, std = augment.channel_statistics(Split(images, torch.zeros(2500, dtype=torch.int64)))
    values = images.double().transpose(0, 1).flatten(1)
    assert torch.allclose(mean.double(), values.mean(1))
    assert torch.allclose(std.double(), values.std(1, correction=0))
    normalized = augment.normalize(images, mean, std)
    assert normalized.dtype == torch.float32
    assert normalized.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (normalized.var(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


def test_statistics_of_images_in_files_decode_a_part():
    class Decoded:
        input_shape = (1, 1, 1)
        asked = 0

        def __len__(self):
            return 1000

        def batch(self, indices):
            self.asked += len(indices)
            return indices.to(torch.float32).reshape(-1, 1, 1, 1)

        def take(self, indices):
            raise AssertionError("statistics ask for batches alone")

    inputs = Decoded()
    mean, _ = augment.channel_statistics(Split(inputs, torch.zeros(1000, dtype=torch.int64)), max_decoded=101)
    assert inputs.asked == 101
    assert abs(mean.item() - 499.5) < 1


def test_a_channel_that_never_changes_survives_normalization():
    split = Split(torch.full((100, 2, 3, 3), 7.1), torch.zeros(100, dtype=torch.int64))
    mean, std = augment.channel_statistics(split)
    assert std.tolist() == [1.0, 1.0]
    assert augment.normalize(split.inputs, mean, std).abs().max() < 1e-5


def test_normalize_leaves_its_input_alone():
    inputs = torch.ones(2, 3, dtype=torch.float64)
    result = augment.normalize(inputs, torch.zeros(3), torch.full((3,), 2.0))
    assert result.dtype == torch.float64
    assert inputs.eq(1).all()
    assert result.eq(0.5).all()


def test_bad_input():
    images = make_images()
    with pytest.raises(ValueError, match=r"images must be \[N, channels, H, W\]. Got \(3, 8, 8\)"):
        augment.random_crop(images[0])
    with pytest.raises(ValueError, match="padding must be at least 0"):
        augment.random_crop(images, -1)
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\]. Got 2"):
        augment.random_flip(images, 2)
    with pytest.raises(ValueError, match="size must be at least 0"):
        augment.cutout(images, -1)
    with pytest.raises(ValueError, match="smallest_area"):
        augment.random_resized_crop(images, 4, smallest_area=0.0)
    with pytest.raises(ValueError, match=r"mean and std must be \[3\]"):
        augment.normalize(images, torch.zeros(2), torch.ones(2))
    rows = SparseRows(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), 4)
    with pytest.raises(TypeError, match="sparse features have no channels"):
        augment.channel_statistics(Split(rows, torch.tensor([0])))
    with pytest.raises(ValueError, match="max_decoded must be at least 1"):
        augment.channel_statistics(Split(images, torch.zeros(6, dtype=torch.int64)), max_decoded=0)


def test_images_grow_in_steps_and_are_whole_at_the_end():
    sizes = [augment.growing_size(epoch / 40, 16, 32, 0.75) for epoch in range(40)]
    assert sizes == [16] * 15 + [24] * 15 + [32] * 10


@given(
    progress=st.floats(0, 1, exclude_max=True),
    start=st.integers(0, 80),
    full=st.integers(1, 64),
    growth=st.floats(0.01, 1),
)
def test_a_growing_size_is_between_its_start_and_the_full_one(progress, start, full, growth):
    size = augment.growing_size(progress, start, full, growth)
    assert min(start or full, full) <= size <= full
    later = augment.growing_size(progress + 0.1, start, full, growth)
    assert later >= size


def test_shrinking_by_two_keeps_means_and_leaves_small_images_alone():
    images = make_images(dtype=torch.float32, height=32, width=32)
    small = augment.shrink(images, 16)
    # Away from the border the weights of a bilinear filter over 2 x 2 new pixels are 1, 3, 3, 1 eighths.
    taps = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    expected = torch.einsum("nchw,h,w->nc", images[:, :, 3:7, 5:9], taps, taps)
    torch.testing.assert_close(small[:, :, 2, 3], expected)
    assert augment.shrink(images, 32) is images
