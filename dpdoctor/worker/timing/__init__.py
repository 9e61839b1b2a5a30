"""Steps, phases and samples: what is counted inside of the training loop, and what counting costs."""
