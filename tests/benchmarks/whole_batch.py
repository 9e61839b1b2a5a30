"""What the transforms of samples/mnist_lenet.py do for one image after the other, for a whole batch at once."""

import numpy as np
import torch
from torch.nn.functional import affine_grid, grid_sample

MEAN, DEVIATION = 0.1307, 0.3081
TURN, SHIFT, SCALE = np.pi / 12, 0.1, 0.1


class Collate:
    """Makes a batch of images on which the transforms of these names were left out."""

    def __init__(self, *names):
        self.names = names

    def __call__(self, items):
        images, labels = zip(*items, strict=True)
        if "ToTensor" in self.names:
            batch = torch.from_numpy(np.stack([np.asarray(image) for image in images])[:, None]).float().div_(255)
        else:
            batch = torch.stack(images)
        if "Normalize" in self.names:
            batch = batch.sub_(MEAN).div_(DEVIATION)
        if "RandomAffine" in self.names:
            batch = moved(batch)
        return batch, torch.tensor(labels)


def moved(batch):
    """Return the images turned, shifted and scaled, each at random."""
    angle = TURN * (2 * torch.rand(len(batch)) - 1)
    scale = 1 + SCALE * (2 * torch.rand(len(batch)) - 1)
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    # affine_grid has an image reach from -1 to 1.
    shift = 2 * SHIFT * (2 * torch.rand(2, len(batch)) - 1)
    theta = torch.stack([torch.stack([cosine, -sine, shift[0]], 1), torch.stack([sine, cosine, shift[1]], 1)], 1)
    return grid_sample(batch, affine_grid(theta, batch.shape, align_corners=False), align_corners=False)
