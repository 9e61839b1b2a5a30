"""Names by which torch marks what a host thread does, the same in traces since 2021: patterns for `Trace.named`."""

PROFILER_STEP = r"^ProfilerStep#\d{1,18}$"  # more digits are none of torch's and no int64
OPTIMIZER_STEP = r"^Optimizer\.step#"
ZERO_GRAD = r"^Optimizer\.zero_grad#"
LOADER = r"^enumerate\(DataLoader\)#"
# The engine names the span around each node of the graph; before 2022 there are only the nodes' own names.
BACKWARD = r"^autograd::engine::evaluate_function|^\w+Backward\d*$|^torch::autograd::AccumulateGrad$"
PYTHON_GC = r"^Python GC"
# The operators that start collectives, and the collectives of backends that run on host threads of their own.
COMM_CALL = r"^_?c10d(?:_functional)?::"
# Functional collectives, those of DTensor among them, and where they are waited for.
FUNCTIONAL = r"^_?c10d_functional::"
WAIT = r"^_?c10d_functional::wait_tensor$"
# What the backend says of them, around what it launches; the operator `record_param_comms` carries the metadata.
COMM_RECORD = r"^record_param_comms$"
COMM_ANNOTATION = r"^(?:nccl|xccl):"
HOST_COMM = r"^(?:gloo|mpi|ucc):"
# What DistributedDataParallel does around them: filling and emptying buckets, and flattening buffers.
DDP_REDUCER = r"^torch::distributed::reducer::|^torch\.distributed\.ddp\.reducer::"
DDP_HANDLING = rf"^aten::flatten_dense_tensors$|{DDP_REDUCER}"
# nn.DataParallel, which adds up gradients by flattening them, too, in one process.
DP_FORWARD = r"^DataParallel\.forward$"
# The hooks of fully_shard, in which it calls collectives, waits for them, and copies.
FSDP_HOOK = r"^FSDP::"
# How dpdoctor names the phases of a step in the traces that it records itself.
PHASE = r"^dpdoctor: "
# Spans of the loop itself, which hold what else a step does.
OF_LOOP = r"^(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#)"
# Spans that torch or dpdoctor names; the others are the script's.
NOT_SCRIPTS = (
    r"^(?:dpdoctor: |ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#|autograd::|Python GC|PyTorch Profiler|"
    r"Torch-Compiled|CompiledF|TorchDynamo|(?:Distributed|FullySharded)?DataParallel\b|FullyShardedDataParallel|FSDP::|"
    r"c10d::|torch\.distributed|(?:gloo|mpi|ucc|nccl|xccl):|ProcessGroup)"
)
