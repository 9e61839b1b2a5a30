"""dpdoctor: profile and diagnose the throughput of data-parallel training in PyTorch."""

__version__ = "0.1.0"
