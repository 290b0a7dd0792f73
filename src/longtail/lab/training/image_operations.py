"""Operations of augmentation policies on batches of bytes: each image has its own strength.

Images are uint8 [N, C, H, W] with 1 or 3 channels, strength is [N]; the result is new, of the same kind. Values are
those of Pillow, pixel by pixel, to its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["OPERATIONS", "apply_operations"]

FILL = 128
"""What comes in from outside of an image: gray, near the mean of natural images."""

Operation = Callable[[Tensor, Tensor], Tensor]
"""images [n, C, H, W], strength [n] -> images."""


def apply_operations(images: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Each image after its own operation.

    Args:
        images: uint8 [N, C, H, W] with 1 or 3 channels.
        operation: [N] positions in ``OPERATIONS``.
        strength: [N]; what it means is the operation's: a share of the size, degrees, bits, a difference of a factor
            from 1. Those that have no strength ignore it.

    >>> images = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> invert = torch.tensor([list(OPERATIONS).index("invert")])
    >>> apply_operations(images, invert, torch.zeros(1)).flatten().tolist()
    [255, 254, 253, 252]
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 [N, 1 or 3, H, W]. Got {images.dtype} {tuple(images.shape)}; "
            "leave train.augmentation out."
        )
    operation, strength = operation.to(images.device), strength.to(images.device)
    result = images.clone()
    for number, function in enumerate(OPERATIONS.values()):
        chosen = torch.nonzero(operation == number)[:, 0]
        if len(chosen) and function is not identity:
            result[chosen] = function(images[chosen], strength[chosen])
    return result


def identity(images: Tensor, strength: Tensor) -> Tensor:
    """The images."""
    return images


def shear_x(images: Tensor, strength: Tensor) -> Tensor:
    """Rows move left by strength times their distance from the upper edge."""
    return _warp(images, _affine(1, strength, 0, 0, 1, 0))


def shear_y(images: Tensor, strength: Tensor) -> Tensor:
    """Columns move up by strength times their distance from the left edge."""
    return _warp(images, _affine(1, 0, 0, strength, 1, 0))


def translate_x(images: Tensor, strength: Tensor) -> Tensor:
    """To the left by a share of the width."""
    return _warp(images, _affine(1, 0, strength * images.shape[3], 0, 1, 0))


def translate_y(images: Tensor, strength: Tensor) -> Tensor:
    """Upward by a share of the height."""
    return _warp(images, _affine(1, 0, 0, 0, 1, strength * images.shape[2]))


def rotate(images: Tensor, strength: Tensor) -> Tensor:
    """Counterclockwise around the center, by degrees."""
    cosine, sine = torch.deg2rad(strength).cos(), torch.deg2rad(strength).sin()
    x, y = images.shape[3] / 2, images.shape[2] / 2
    return _warp(images, _affine(cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y))


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    """Away from black, by the factor 1 + strength."""
    return _blend(torch.zeros((), device=images.device), images, strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Away from the image's mean gray, by the factor 1 + strength."""
    gray = (_gray(images).flatten(1).double().mean(dim=1) + 0.5).floor().float()
    return _blend(gray.view(-1, 1, 1, 1), images, strength)


def color(images: Tensor, strength: Tensor) -> Tensor:
    """Away from the gray image, by the factor 1 + strength."""
    return _blend(_gray(images).float(), images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Away from the image smoothed by a 3 x 3 window, by the factor 1 + strength; the border stays."""
    if min(images.shape[2:]) < 3:
        return images.clone()
    wide = images.float()
    inner = wide[:, :, 1:-1, 1:-1]
    # The middle of the window counts 5, its neighbors 1.
    smooth = ((9 * F.avg_pool2d(wide, 3, stride=1) + 4 * inner) / 13 + 0.5).floor_()
    degenerate = wide.clone()
    degenerate[:, :, 1:-1, 1:-1] = smooth
    return _blend(degenerate, images, strength)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Only the highest bits of each value, as many as strength, rounded."""
    mask = 256 - (2 ** (8 - strength.round())).to(torch.int32)
    return images & mask.to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Values from strength on are inverted."""
    return torch.where(images < strength.view(-1, 1, 1, 1), images, 255 - images)


def invert(images: Tensor, strength: Tensor) -> Tensor:
    """Black to white."""
    return 255 - images


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """The darkest value of each channel to 0, the brightest to 255; a channel of one value stays."""
    lowest, highest = (edge.double()[:, :, None] for edge in torch.aminmax(images.flatten(2), dim=2))
    scale = 255 / (highest - lowest).clamp_min(1)
    table = (torch.arange(256, device=images.device) * scale - lowest * scale).clamp(0, 255)
    identical = torch.arange(256, dtype=table.dtype, device=images.device)
    return _look_up(images, torch.where(highest > lowest, table, identical))


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Each channel with every brightness about as often; where few pixels differ from the brightest, it stays."""
    count, channels = images.shape[:2]
    shifted = images.flatten(2).long() + 256 * torch.arange(count * channels, device=images.device).view(
        -1, channels, 1
    )
    counts = torch.bincount(shifted.flatten(), minlength=256 * count * channels).view(count, channels, 256)
    brightest = images.flatten(2).amax(dim=2, keepdim=True).long()
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, brightest)) // 255
    below = counts.cumsum(dim=2) - counts
    table = ((below + step // 2) // step.clamp_min(1)).clamp_max(255)
    return _look_up(images, torch.where(step > 0, table, torch.arange(256, device=images.device)))


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            identity,
            shear_x,
            shear_y,
            translate_x,
            translate_y,
            rotate,
            brightness,
            contrast,
            color,
            sharpness,
            posterize,
            solarize,
            invert,
            autocontrast,
            equalize,
        )
    }
)
"""Every operation by its name; its position is its number in ``apply_operations``."""


def _affine(*entries: Tensor | float) -> Tensor:
    """[n, 2, 3]: where in the image a pixel of the result comes from."""
    like = next(entry for entry in entries if isinstance(entry, Tensor))
    columns = [entry if isinstance(entry, Tensor) else torch.full_like(like, entry) for entry in entries]
    return torch.stack(columns, dim=1).view(-1, 2, 3)


def _warp(images: Tensor, transform: Tensor) -> Tensor:
    """The pixel of the image that each pixel's center of the result falls into: bytes stay what they are."""
    height, width = images.shape[2:]
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    points = torch.stack([x.flatten(), y.flatten(), torch.ones(height * width)]).to(images.device)
    column, row = (transform.float() @ points).floor().unbind(dim=1)
    is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = torch.where(is_inside, row * width + column, 0).long()[:, None].expand(-1, images.shape[1], -1)
    picked = images.flatten(2).gather(2, source)
    return picked.masked_fill_(~is_inside[:, None], FILL).view(images.shape)


def _blend(degenerate: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """degenerate + (1 + strength) * (images - degenerate), cut off and rounded down."""
    factor = (1 + strength.float()).view(-1, 1, 1, 1)
    return ((images.float() - degenerate).mul_(factor) + degenerate).clamp_(0, 255).to(torch.uint8)


def _gray(images: Tensor) -> Tensor:
    """[n, 1, H, W] int32 luma of ITU-R 601, in fixed point as Pillow has it."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """The byte at each pixel's value in its channel's table [n, C, 256]."""
    return table.to(torch.uint8).gather(2, images.flatten(2).long()).view(images.shape)
