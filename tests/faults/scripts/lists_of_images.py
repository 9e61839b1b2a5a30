"""Fine-tunes a detector: images of different sizes as a list of tensors, one dict per image, a dict of losses.

Its backbone is frozen and stays in eval mode; one of its layers never gets a gradient.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 16 + index % 4, 16 + index % 3, generator=generator)
        boxes = torch.rand(1 + index % 3, 4, generator=generator)
        return image, {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.long)}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), pool)
        self.box = nn.Linear(8, 4)
        self.label = nn.Linear(8, 2)
        self.mask = nn.Linear(8, 7)

    def forward(self, images, targets):
        features = torch.cat([self.backbone(image.unsqueeze(0)) for image in images])
        boxes = torch.stack([target["boxes"].mean(0) for target in targets])
        labels = torch.stack([target["labels"][0] for target in targets])
        return {
            "loss_box": nn.functional.l1_loss(self.box(features), boxes),
            "loss_label": nn.functional.cross_entropy(self.label(features), labels),
        }


torch.manual_seed(5)
model = Detector()
model.backbone.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
while True:
    model.train()
    model.backbone.eval()
    for images, targets in DataLoader(
        Scenes(), batch_size=4, shuffle=True, collate_fn=lambda items: tuple(zip(*items))
    ):
        images, targets = list(images), [dict(target) for target in targets]
        loss = sum(model(images, targets).values())
        print(len(images), loss.item(), flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
