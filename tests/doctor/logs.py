# ruff: noqa: E501 (log lines, as they are)
"""Lines as they appear in the wild, other than the tables' own examples: (text, id of the entry, details)."""

VARIANTS = [
    # the ten classic ones
    ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for QLinearConv(10) node with name 'conv1_quant'",
     "ort-no-kernel", {"op": "QLinearConv", "opset": "10", "node": "conv1_quant"}),
    ("Error: no available backend found. ERR: [wasm] Could not find an implementation for GridSample(20) node with name '/up/GridSample'",
     "ort-no-kernel", {"op": "GridSample", "node": "/up/GridSample"}),
    ("ai.onnxruntime.OrtException: Error code - ORT_NOT_IMPLEMENTED - message: Could not find an implementation for Cast(13) node with name 'Cast_7'",
     "ort-no-kernel", {"op": "Cast"}),
    ("error code - ORT_INVALID_ARGUMENT - message: Invalid rank for input: mask Got: 2 Expected: 3 Please fix either the inputs/outputs or the model.",
     "ort-wrong-rank", {"input": "mask", "got": "2", "expected": "3"}),
    ("Microsoft.ML.OnnxRuntime.OnnxRuntimeException: [ErrorCode:InvalidArgument] Invalid rank for input: serving_default_x:0 Got: 1 Expected: 4",
     "ort-wrong-rank", {"input": "serving_default_x:0"}),
    ("RuntimeError: Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [2]",
     "ort-wrong-rank", {}),
    ("RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 3; 23.70 GiB total capacity; 20.01 GiB already allocated; 313.56 MiB free; 21.12 GiB reserved in total by PyTorch)",
     "torch-cuda-oom", {"asked": "1.17 GiB", "free": "313.56 MiB"}),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB. GPU 1 has a total capacity of 79.11 GiB of which 41.06 MiB is free.",
     "torch-cuda-oom", {"total": "79.11 GiB", "free": "41.06 MiB"}),
    ("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "cuda-oom", {}),
    ("terminate called after throwing an instance of 'thrust::system::system_error' what(): CUDA error: out of memory", "cuda-oom", {}),
    ("2025-01-01 [E:onnxruntime] Available memory of 1024 is smaller than requested bytes of 4096 onnxruntime::BFCArena::AllocateRawInternal Available memory of 1024 is smaller than requested bytes of 4096",
     "ort-arena-memory", {"bytes": "4096"}),
    ("and 12.04 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try", "memory-fragmentation", {"reserved": "12.04 GiB"}),
    ("[V] Fusion of Conv_3 + Relu_4 failed: intermediate value is used twice", "fusion-absent", {}),
    ("WARNING: LayerNorm_12 could not be fused", "fusion-absent", {"what": "LayerNorm_12"}),
    ("The node /encoder/MatMul_3 and node /encoder/Add_4 can not be fused: bias is not constant", "fusion-absent", {}),
    ("fusion.py: EmbedLayer not fused", "fusion-absent", {"what": "EmbedLayer"}),
    ("ValueError: input tensor must be contiguous", "not-contiguous", {}),
    ("RuntimeError: Expected contiguous tensor, but got non-contiguous tensor for argument #2 'grad_output'", "not-contiguous", {}),
    ("BufferError: memoryview: underlying buffer is not C-contiguous", "not-contiguous", {}),
    ("ValueError: At least one stride in the given numpy array is negative, and tensors with negative strides are not currently supported.", "not-contiguous", {}),
    ("UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). Please update", "driver-too-old", {"version": "12020"}),
    ("cudaGetDeviceCount() returned cudaErrorInsufficientDriver", "driver-too-old", {}),
    ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a newer version", "driver-too-old", {"needs": "12.6"}),
    ("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=-1 ; hostname=ci", "driver-too-old", {}),
    ("[ONNXRuntimeError] : 1 : FAIL : Failed to load library /opt/venv/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime_providers_tensorrt.so with error: libnvinfer.so.10: cannot open shared object file: No such file or directory",
     "ort-provider-library", {}),
    ('FAIL : LoadLibrary failed with error 1114 "" when trying to load "D:\\a\\venv\\onnxruntime_providers_tensorrt.dll"', "ort-provider-library", {"code": "1114"}),
    ("[W:onnxruntime:Default, onnxruntime_pybind_state.cc:1013 CreateExecutionProviderInstance] Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*.",
     "ort-provider-library", {"provider": "CUDAExecutionProvider"}),
    ("Type Error: Type 'tensor(float16)' of input parameter (/blk/Mul_output_0) of operator (Resize) in node (/up/Resize) is invalid.",
     "dtype-unsupported-graph", {"op": "Resize", "node": "/up/Resize", "dtype": "tensor(float16)"}),
    ("Type Error: Type parameter (T) of Optype (Concat) bound to different types (tensor(int64) and tensor(float) in node (Concat_44).",
     "dtype-unsupported-graph", {"op": "Concat", "node": "Concat_44"}),
    ('RuntimeError: "addmm_impl_cpu_" not implemented for \'Half\'', "torch-dtype-kernel", {"op": "addmm_impl_cpu_", "dtype": "Half"}),
    ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16", "torch-dtype-kernel", {}),
    ("Unsupported ONNX data type: DOUBLE (11)", "tensorrt-dtype", {"dtype": "DOUBLE"}),
    ("onnx.onnx_cpp2py_export.checker.ValidationError: Nodes in a graph must be topologically sorted, however input 'x7' of node:", "graph-cycle", {"value": "x7"}),
    ("ValueError: the graph contains a cycle: a -> b -> a", "graph-cycle", {}),
    ("RuntimeError: Cycle detected in graph while sorting", "graph-cycle", {}),
    ("CUDA Runtime API error 702: the launch timed out and was terminated (cudaErrorLaunchTimeout)", "cuda-launch-timeout", {}),
    ("[ 843.30] NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "cuda-device-lost", {"xid": "79"}),
    ("nvidia-smi: Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error", "cuda-device-lost", {}),
    ("Exception(1) tid(3c4) 887A0006 The GPU will not respond to more commands, most likely because of an invalid command", "directml-device-lost", {"code": "887A0006"}),
    # others
    ("Got invalid dimensions for input: input_ids for the following indices\n index: 1 Got: 77 Expected: 64\n", "ort-wrong-shape", {"input": "input_ids", "axis": "1", "got": "77", "expected": "64"}),
    ("INVALID_ARGUMENT : Unexpected input data type. Actual: (tensor(int32)) , expected: (tensor(int64))", "ort-wrong-dtype", {"got": "tensor(int32)", "expected": "tensor(int64)"}),
    ("Unexpected input data type. Actual: (N11onnxruntime11NonOnnxTypeIiEE) , expected: (N11onnxruntime11NonOnnxTypeIxEE)", "ort-wrong-dtype", {}),
    ("ValueError: Model requires 3 inputs. Input Feed contains 2; Required inputs (['bbox']) are missing from input feed (['ids', 'mask']).", "ort-input-name", {"input": "['bbox']"}),
    ("Unsupported model IR version: 12, max supported IR version: 10", "ort-ir-version", {"found": "12", "most": "10"}),
    ("Opset 5 is under development and support for this is limited. The operator schemas may change. Current official support for domain ai.onnx.ml is till opset 4.", "ort-opset-too-new", {"opset": "5", "domain": "ai.onnx.ml", "most": "4"}),
    ("Fatal error: com.microsoft:FooBar(-1) is not a registered function/op", "ort-custom-op-missing", {"op": "com.microsoft:FooBar"}),
    ("Fatal error: _DCNv2 is not a registered function/op", "ort-custom-op-missing", {"op": "_DCNv2"}),
    ("[ErrorCode:InvalidProtobuf] Load model from model.bin failed:Protobuf parsing failed.", "ort-damaged-file", {"file": "model.bin"}),
    ("google.protobuf.message.DecodeError: Error parsing message with type 'onnx.ModelProto'", "ort-damaged-file", {}),
    ("External initializer: onnx::MatMul_4622 offset: 0 size to read: 11534336 given file_length: 4194304 are out of bounds or can not be read in full.", "ort-external-data", {}),
    ("The input tensor cannot be reshaped to the requested shape. Input shape:{0,128,1024}, requested shape:{0,-1,16,64}", "ort-reshape", {"from": "{0,128,1024}", "to": "{0,-1,16,64}"}),
    ("RuntimeError: shape '[2, 8, 64]' is invalid for input of size 512", "ort-reshape", {"from": "512"}),
    ("RuntimeError: The size of tensor a (197) must match the size of tensor b (257) at non-singleton dimension 1", "ort-broadcast", {"a": "197", "b": "257"}),
    ("INVALID_ARGUMENT : indices element out of data bounds, idx=6157 data_dim=6148", "ort-index-range", {"index": "6157"}),
    ("onnx runtime error 6: Non-zero status code returned while running Mul node. Name:\\'Mul_8702\\' Status Message: x", "ort-node-failed", {"op": "Mul", "node": "Mul_8702"}),
    ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; hostname=LED-PC", "cublas-execution", {"status": "CUBLAS_STATUS_EXECUTION_FAILED"}),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cudnn-failure", {"status": "CUDNN_STATUS_NOT_INITIALIZED"}),
    ("CUDA error 222 at ggml-cuda.cu:5548: the provided PTX was compiled with an unsupported toolchain.", "cuda-unsupported-ptx", {}),
    ("cudaErrorNoKernelImageForDevice: no kernel image is available for execution on the device", "cuda-arch-missing", {}),
    ("Tesla K40c with CUDA capability sm_35 is not compatible with the current PyTorch installation.", "cuda-arch-missing", {"arch": "sm_35"}),
    ("what():  CUDA error: an illegal memory access was encountered", "cuda-illegal-access", {}),
    ("../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.", "torch-device-assert", {"condition": "t >= 0 && t < n_classes"}),
    ("RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled cuda error, NCCL version 2.18.1", "nccl-failure", {}),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "shm-too-small", {}),
    ("docker: Error response from daemon: could not select device driver \"nvidia\" with capabilities: [[gpu]].", "container-no-gpu", {}),
    ("failed to create shim: OCI runtime create failed: nvidia-container-cli: initialization error: driver rpc error: timed out: unknown", "container-no-gpu", {}),
    ("RuntimeError: No CUDA GPUs are available", "driver-missing", {}),
    ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144", "driver-library-mismatch", {}),
    ("ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory", "shared-library-missing", {"library": "libcudart.so.11.0"}),
    ("Could not locate cudnn_ops_infer64_8.dll. Please make sure it is in your library path!", "shared-library-missing", {"library": "cudnn_ops_infer64_8.dll"}),
    ("ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by /opt/x.so)", "glibcxx-too-old", {"symbol": "GLIBC_2.28"}),
    ("python: symbol lookup error: /usr/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister", "symbol-undefined", {"symbol": "ncclCommRegister"}),
    ("A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.2 as it may crash.", "numpy-abi", {"version": "2.3.2"}),
    ("AttributeError: module 'numpy' has no attribute 'bool8'", "numpy-abi", {}),
    ("OMP: Error #15: Initializing libomp.dylib, but found libiomp5.dylib already initialized.", "openmp-twice", {"a": "libomp.dylib", "b": "libiomp5.dylib"}),
    ("container ner-api: last state: Terminated, reason: OOMKilled, exit code 137", "system-oom-killed", {}),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096000000 bytes.", "system-oom-killed", {}),
    ("[W] [TRT] TensorRT was linked against cuBLAS/cuBLAS LT 11.6.1 but loaded cuBLAS/cuBLAS LT 11.4.2", "tensorrt-library-mismatch", {"built": "11.6.1", "loaded": "11.4.2"}),
    ("[E] [TRT] ../rtSafe/coreReadArchive.cpp (38) - Serialization Error in verifyHeader: 0 (Version tag does not match)", "tensorrt-version-tag", {}),
    ("IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an incompatible device, expecting compute 8.9 got compute 8.6, please rebuild.)", "tensorrt-device-tag", {"current": "8.9", "engine": "8.6"}),
    ("[E] Error Code: 4: input_1: dynamic input is missing dimensions in profile 0", "tensorrt-no-profile", {"profile": "0"}),
    ("Supplied binding dimension [1,3,576,768] for bindings[0] exceed min ~ max range at index 2, maximum dimension in profile is 800", "tensorrt-profile-range", {}),
    ("[TRT] [E] IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node /model.22/dfl/Softmax.)", "tensorrt-no-implementation", {"node": "/model.22/dfl/Softmax"}),
    ("[TensorRT] ERROR: Tactic Device request: 2304MB Available: 1536MB. Device memory is insufficient to use tactic.", "tensorrt-memory", {"request": "2304", "available": "1536"}),
    ("[8] No importer registered for op: NonZero", "tensorrt-unsupported-op", {"op": "NonZero"}),
    ("[I] [TRT] No importer registered for op: GridSample. Attempting to import as plugin.", "tensorrt-plugin-missing", {"op": "GridSample"}),
    ("error while loading shared libraries: libnvinfer_plugin.so.8: cannot open shared object file: No such file or directory", "tensorrt-library-missing", {"library": "libnvinfer_plugin.so.8"}),
    ("triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 108672, Hardware limit: 101376. Reducing block sizes", "triton-out-of-resources", {"required": "108672", "limit": "101376"}),
    ("ptxas fatal   : Value 'sm_110a' is not defined for option 'gpu-name'", "triton-ptxas-arch", {"arch": "sm_110a"}),
    ("ValueError: Pointer argument (at 9) cannot be accessed from Triton (cpu tensor?)", "triton-cpu-tensor", {"argument": "9"}),
    ("[StatusCode.INVALID_ARGUMENT] unexpected shape for input 'text' for model 'bert'. Expected [-1,128], got [1,256]", "triton-server-shape", {"input": "text", "model": "bert", "expected": "[-1,128]", "got": "[1,256]"}),
    ("E0323 model_lifecycle.cc:638] failed to load 'resnet' version 3: Invalid argument: unexpected inference output 'prob'", "triton-server-load", {"model": "resnet", "version": "3"}),
    ("| gpt2  | 1       | UNAVAILABLE: Internal: oops", "triton-server-load", {"model": "gpt2"}),
    ("Stub process 'asr_0_0' is not healthy.", "triton-server-stub", {}),
    ("Request for unknown model: 'bert' has no available versions", "triton-server-unknown-model", {"model": "bert"}),
    ("OpenVINO does not support the following ONNX operations: com.microsoft.FastGelu, LayerNormalization", "openvino-unsupported-op", {}),
    ("RuntimeError: The input blob size is not equal to the network input size: got 153600 expecting 98304", "openvino-tensor-mismatch", {"got": "153600", "expected": "98304"}),
    ("Device with \"XPU\" name is not registered in the OpenVINO Runtime", "openvino-device", {"device": "XPU"}),
    ("RuntimeError: Exporting the operator var to ONNX opset version 10 is not supported. Please open a bug", "torch-export-op", {"op": "var", "opset": "10"}),
    ("torch._dynamo hit config.cache_size_limit (64)", "torch-recompile-limit", {"limit": "64"}),
    ("RuntimeError: size mismatch, m1: x; mat1 and mat2 shapes cannot be multiplied (1x18 and 512x1024)", "torch-shape-mismatch", {"a": "1x18", "b": "512x1024"}),
    ("Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!", "torch-device-mismatch", {"a": "cuda:1", "b": "cuda:0"}),
    ("zsh: illegal hardware instruction  python x.py\nIllegal instruction: 4", "illegal-instruction", {}),
    ("OSError: [Errno 28] No space left on device: '/root_cache/models'", "disk-full", {}),
]  # fmt: skip

HEALTHY = {
    "onnxruntime verbose": """\
2024-06-13 14:16:16.791 [I:onnxruntime:, inference_session.cc:583 TraceSessionOptions] Session Options {  execution_mode:0 execution_order:DEFAULT enable_profiling:0 optimized_model_filepath: enable_mem_pattern:1 enable_mem_reuse:1 }
2024-06-13 14:16:16.792 [I:onnxruntime:, bfc_arena.cc:26 BFCArena] Creating BFCArena for Cuda with following configs: initial_chunk_size_bytes: 1048576 max_dead_bytes_per_chunk: 134217728 memory limit: 18446744073709551615 arena_extend_strategy: 0
2024-06-13 14:16:16.793 [I:onnxruntime:log, bfc_arena.cc:306 AllocateRawInternal] Extending BFCArena for Cuda. bin_num:9 (requested) num_bytes: 160000 (actual) rounded_bytes:160000
2024-06-13 14:16:16.794 [I:onnxruntime:, graph_partitioner.cc:900 InlineFunctionsAOT] This model does not have any local functions defined. AOT Inlining is not performed
2024-06-13 14:16:16.795 [I:onnxruntime:, graph_transformer.cc:15 Apply] GraphTransformer EliminateSlice modified: 0 with status: OK
2024-06-13 14:16:16.796 [V:onnxruntime:, session_state.cc:1148 VerifyEachNodeIsAssignedToAnEp] Node placements
2024-06-13 14:16:16.797 [V:onnxruntime:, session_state.cc:1151 VerifyEachNodeIsAssignedToAnEp]  All nodes placed on [CPUExecutionProvider]. Number of nodes: 689
2024-06-13 14:16:16.798 [I:onnxruntime:, inference_session.cc:1787 Initialize] Session successfully initialized.
Fused LayerNormalization: 25
Fused Attention count: 12
""",
    "tensorrt build": """\
[07/28/2024-14:46:30] [I] TensorRT version: 8.6.1
[07/28/2024-14:46:30] [I] [TRT] [MemUsageChange] Init CUDA: CPU +354, GPU +0, now: CPU 372, GPU 3702 (MiB)
[07/28/2024-14:46:37] [W] [TRT] onnx2trt_utils.cpp:374: Your ONNX model has been generated with INT64 weights, while TensorRT does not natively support INT64. Attempting to cast down to INT32.
[07/28/2024-14:46:37] [I] Finished parsing network model. Parse time: 0.0293
[07/28/2024-14:46:44] [I] [TRT] Local timing cache in use. Profiling results in this builder pass will not be stored.
[07/28/2024-14:48:48] [I] [TRT] Detected 1 inputs and 4 output network tensors.
[07/28/2024-14:48:48] [I] [TRT] Total Activation Memory: 53452800
[07/28/2024-14:48:48] [I] Engine built in 131.2 sec.
[07/28/2024-14:48:49] [I] Throughput: 812.3 qps
&&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=model.onnx --fp16
""",
    "triton server": """\
I0307 12:33:01.747799 1 grpc_server.cc:2513] Started GRPCInferenceService at 0.0.0.0:8001
I0307 12:34:06.718822 1 model_lifecycle.cc:461] loading: ner:1
I0307 12:34:11.802379 1 libtorch.cc:2507] TRITONBACKEND_Initialize: pytorch
I0307 12:34:15.000000 1 model_lifecycle.cc:818] successfully loaded 'ner'
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+
| ner   | 1       | READY  |
+-------+---------+--------+
I0307 12:34:15.1 1 server.cc:291] All models are stopped, unloading models
""",
    "pytorch training": """\
Epoch 0, lr [0.0001]:   5%|#         | 72/1398 [1:12:34<24:31:08, 66.57s/it] loss=2.59 v_num=95nc
[rank0]:[W602 11:18:52] Using device cuda:0, memory allocated 8.1 GiB, reserved 9.0 GiB of 23.7 GiB
INFO:torch._dynamo: compiling forward, 0 graph breaks
Validation: mean absolute error 0.031, top-1 error 23.4 %, failures: 0
Saved checkpoint to checkpoints/last.ckpt, 12.4 GB free of 100.0 GB
torch.cuda.OutOfMemory guard not triggered
""",
    "openvino": """\
[ INFO ] OpenVINO: 2026.4.1
[ INFO ] Loading model files
[ INFO ] Read model took 9.60 ms
[ INFO ] Model inputs: images (node: images) : f32 / [...] / [?,3,640,640]
[ INFO ] Throughput:   182.95 FPS
""",
    "system": """\
Nov 29 12:00:01 host kernel: [    0.000000] Linux version 6.8.0
Nov 29 12:00:02 host kernel: nvidia: loading out-of-tree module taints kernel.
Nov 29 12:00:02 host kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build
Successfully installed numpy-2.4.6 onnx-1.23.2 onnxruntime-1.32.0
Requirement already satisfied: nvidia-cudnn-cu12==9.1.0.70 in ./.venv/lib (from torch)
GET /v2/health/ready HTTP/1.1 200 OK, 0 errors, 137 requests, 132 ms
test_error_handling PASSED, 1370 passed in 12.2s
exit code 0
""",
    "prose": "The cat sat on the mat. Nothing failed, and no error was seen. We fuse kernels and reshape tensors.\n",
}
