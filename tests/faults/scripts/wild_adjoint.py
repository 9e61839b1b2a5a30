"""The backward pass computes a field once more, around which each forward makes a module anew, as in neural CDEs."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("scale", torch.ones(1))

    def forward(self, z):
        return z + 0.1 * self.scale * self.function(z).tanh()


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, field, z, *parameters):
        ctx.field, ctx.z, ctx.parameters = field, z.detach(), parameters
        with torch.no_grad():
            return field(z)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            z = ctx.z.requires_grad_()
            for _ in range(1 + int(z[0, 0] > 0)):  # the solver's steps, which go by the data
                output = ctx.field(z)
            return None, *torch.autograd.grad(output, (z, *ctx.parameters), gradient)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.function, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(Adjoint.apply(Field(self.function), self.first(x), *self.function.parameters()))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
