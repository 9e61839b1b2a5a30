#!/usr/bin/env python
# coding: utf-8

# # A notebook, as `jupyter nbconvert --to script` writes it
#
# It trains in cells of the module itself, on all GPUs.

# In[1]:


import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# In[2]:


torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)


# In[3]:


model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
model = nn.DataParallel(model).to(device)
optimizer = torch.optim.SGD(model.module.parameters(), lr=0.01)
model


# ## Training

# In[ ]:


while True:
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
    torch.save(model.module.state_dict(), io.BytesIO())
