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

#: More wordings by the entry that must find them.
WORDINGS = {
    "cuda-arch-missing": [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
    ],
    "cuda-device-lost": [
        "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost. Reboot the system to recover this GPU",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "amdgpu: GPU reset begin!",
        "HIP error: the operation cannot be performed in the present state / device lost",
        "cudaErrorDevicesUnavailable: all CUDA-capable devices are busy or unavailable",
    ],
    "cuda-graph-capture": [
        "CUDA error: operation not permitted when stream is capturing",
    ],
    "cuda-illegal-access": [
        "CUDA error: misaligned address",
        "NVRM: Xid (PCI:0000:41:00): 13, Graphics Exception",
    ],
    "cuda-invalid-device": [
        "CUDA error: invalid device ordinal",
    ],
    "cuda-launch-failure": [
        "CUDA error: unspecified launch failure",
        "CUDA error 719: unspecified launch failure",
    ],
    "cuda-launch-timeout": [
        "RuntimeError: CUDA error: the launch timed out and was terminated",
        "CUDA error 702: cudaErrorLaunchTimeout",
        "CUDA kernel launch timed out",
        "Watchdog: GPU hang detected",
        "ERROR: Display driver nvlddmkm stopped responding and has successfully recovered.",
    ],
    "cuda-oom": [
        "RuntimeError: CUDA error: out of memory",
        "Error Code 1: Cuda Runtime (out of memory)",
        "CUDA error 2 at /src/x.cu:120: out of memory",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "tensorflow/core/common_runtime/bfc_allocator.cc:462] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB",
    ],
    "cuda-peer-access": [
        "CUDA error: peer access is not supported between these two devices",
    ],
    "cuda-unknown": [
        "RuntimeError: cuda runtime error (999) : unknown error",
        "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
    ],
    "cuda-unsupported-ptx": [
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
    ],
    "cudnn-failure": [
        "cudnn status CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    ],
    "directml-device-lost": [
        "DXGI_ERROR_DEVICE_REMOVED",
        "Failure at 887A0006: The GPU will not respond to more commands",
        "887A0005: The GPU device instance has been suspended. Use GetDeviceRemovedReason to determine the appropriate action.",
    ],
    "disk-full": [
        "OSError: [Errno 28] No space left on device",
    ],
    "driver-library-mismatch": [
        "Error 803: system has unsupported display driver / cuda driver combination",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Failed to initialize NVML: Unknown Error",
    ],
    "driver-missing": [
        "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared object file",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    ],
    "driver-too-old": [
        "The NVIDIA driver on your system is too old (found version 11020). Please update your GPU driver",
        "CUDA driver version is insufficient for CUDA runtime version",
        "cudaErrorInsufficientDriver : CUDA driver version is insufficient for CUDA runtime version",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version",
        "CUDA initialization failure with error: 35. Please check your CUDA installation",
        "This container was built for NVIDIA Driver Release 535.86 or later, but version 470.199.02 was detected",
        "CUDA driver version 11.4 is too old for runtime 12.1",
        "ERROR: driver 470.57.02 too old, at least 525.60.13 required",
        "nvidia driver is too old",
        "the installed NVIDIA driver (450.80) does not support CUDA 12",
        "CUDA 12.4 requires driver >= 550.54",
    ],
    "dtype-unsupported-graph": [
        "Type Error: Type 'tensor(int64)' of input parameter (x) of operator (Clip) in node (Clip_5) is invalid.",
        "unsupported dtype float16 for op softmax on cpu",
        "Unsupported data type: complex64",
        "Data type tensor(float16) is not supported by operator Resize",
    ],
    "fusion-absent": [
        "cudaError cannot be fused: ConvBnRelu pattern, op has multiple consumers",
        "[I] [TRT] layer Conv_5 could not be fused with Relu_6",
        "Failed to fuse nodes: cannot fuse op Add_3",
        "Fusion of Gelu failed: node has more than one output",
        "nodes cannot be fused: loop bounds differ",
        "Layers conv1 and relu1 can not be fused because precision differs",
        "skip fusion of LayerNormalization: axes not last",
        "not fusing: too many reads",
        "Fusing of BatchNorm into Conv not possible: the conv has a second consumer",
    ],
    "glibcxx-too-old": [
        "ImportError: /usr/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
    ],
    "gpu-lacks-feature": [
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.",
        "FlashAttention only supports Ampere GPUs or newer.",
    ],
    "graph-cycle": [
        "This is an invalid model. Error: the graph is not acyclic.",
        "Load model from x.onnx failed:This is an invalid model. Graph is not a DAG",
        "onnx.onnx_cpp2py_export.checker.ValidationError: Nodes in a graph must be topologically sorted, however input 'x' of node: name: n OpType: Relu is not output of any previous nodes.",
        "networkx.exception: cycle detected in graph",
        "RuntimeError: There is a cycle in the ensemble: model A",
        "Invalid model: circular dependency between ensembles",
        "RuntimeError: Graph contains a cycle involving node add_3",
        "This graph has a loop: node A depends on itself",
        "Topological sort failed: circular dependencies",
    ],
    "illegal-instruction": [
        "Illegal instruction (core dumped)",
    ],
    "memory-fragmentation": [
        "Of the allocated memory 10 GiB is allocated by PyTorch, and 9.9 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "memory pool is fragmented: largest free block 12 MiB",
    ],
    "nccl-failure": [
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled system error, NCCL version 2.18.1",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLGATHER) ran for 1800123 milliseconds before timing out.",
    ],
    "not-contiguous": [
        "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
        "RuntimeError: input tensor must be contiguous",
        "ValueError: ndarray is not C-contiguous",
        "AssertionError: Matrix A must be contiguous",
        "RuntimeError: Tensors must be contiguous",
        "query must be contiguous in last dimension",
        "RuntimeError: Input tensor must have contiguous last dimension",
        "RuntimeError: input is not contiguous",
        "tensor x has to be contiguous",
        "assert x.is_contiguous()",
        "CHECK_CONTIGUOUS failed: input must be contiguous",
        "stride[-1] must be 1",
        "ValueError: strides of the last dimension must be 1",
    ],
    "numpy-abi": [
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.1 as it may crash.",
        "AttributeError: _ARRAY_API not found",
    ],
    "onnx-two-gib": [
        "onnx.onnx_cpp2py_export: ModelProto exceeds maximum protobuf size of 2GB: 3456789012",
    ],
    "openvino-device": [
        "[NOT_FOUND] Unsupported device: GPU.1",
        "clGetPlatformIDs error -1001",
    ],
    "openvino-gpu-memory": [
        "[GPU] Program build failed: out of resources CL_OUT_OF_RESOURCES",
        "CL_OUT_OF_HOST_MEMORY",
    ],
    "openvino-unsupported-op": [
        "[ GENERAL_ERROR ] Check 'false' failed at src/frontends/common/src/frontend.cpp:53: Converting input model",
        "OpenVINO-ONNX: Not supported ONNX op: GridSample",
    ],
    "ort-arena-memory": [
        "onnxruntime::BFCArena::AllocateRawInternal Available memory of 1048576 is smaller than requested bytes of 268435456",
        "Failed to allocate memory for requested buffer of size 1073741824",
    ],
    "ort-broadcast": [
        "RuntimeError: The size of tensor a (77) must match the size of tensor b (154) at non-singleton dimension 1",
    ],
    "ort-damaged-file": [
        "Protobuf parsing failed.",
    ],
    "ort-ir-version": [
        "Unsupported model IR version: 11, max supported IR version: 10",
    ],
    "ort-no-kernel": [
        "onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented: [ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ConvTranspose(11) node with name 'ConvTranspose_210'",
        "Kernel not found for op com.microsoft.QAttention",
        "Failed to find kernel for Einsum(12) (node Einsum_12). Kernel not found",
        "[E:onnxruntime:, inference_session.cc:1532] Exception during initialization: Op with name (Resize_4) and type (Resize) kernel is not supported in CPUExecutionProvider",
        "NOT_IMPLEMENTED : Failed to find kernel for com.microsoft.MatMulNBits(1)",
        "Failed to find kernel for Cast(13) (node Cast_12). Kernel not found",
        "NotImplemented: Could not find an implementation for the node ConvInteger_3:ConvInteger(10)",
        "No kernel registered for op: DequantizeLinear on DmlExecutionProvider",
        "no op kernel found for node /model/Attention",
        "NotImplementedError: The operator 'aten::_upsample_bicubic2d_aa.out' is not currently implemented for the MPS device.",
        "Unable to find a kernel for GroupNorm in the registry",
    ],
    "ort-opset-too-new": [
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 22 is under development and support for this is limited.",
    ],
    "ort-provider-library": [
        "[E:onnxruntime:Default, provider_bridge_ort.cc:1744 TryGetProviderInfo_CUDA] Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file: No such file or directory",
        'LoadLibrary failed with error 126 "" when trying to load "C:\\Python\\lib\\site-packages\\onnxruntime\\capi\\onnxruntime_providers_cuda.dll"',
        "EP Error D:\\a\\_work\\1\\s\\onnxruntime\\python\\onnxruntime_pybind_state.cc:507 onnxruntime::python::RegisterTensorRTPluginsAsCustomOps Please install TensorRT libraries as mentioned in the GPU requirements page",
        "Require cuDNN 9.* and CUDA 12.*. Please install all dependencies as mentioned in the GPU requirements page",
    ],
    "ort-provider-unavailable": [
        "UserWarning: Specified provider 'TensorrtExecutionProvider' is not in available provider names.Available providers: 'AzureExecutionProvider, CPUExecutionProvider'",
    ],
    "ort-shape-inference": [
        "[ShapeInferenceError] Input tensor must have at least rank 2",
    ],
    "ort-thread-affinity": [
        "pthread_setaffinity_np failed for thread: 12345, index: 3, mask: {4, }, error code: 22 error msg: Invalid argument. Specify the number of threads explicitly so the affinity is not set.",
    ],
    "ort-wrong-dtype": [
        "ValueError: Unexpected input data type. Actual: (tensor(float)) , expected: (tensor(float16))",
    ],
    "ort-wrong-rank": [
        "Invalid rank for input: input_ids Got: 1 Expected: 2 Please fix either the inputs or the model.",
        "RuntimeError: Expected 4-dimensional input for 4-dimensional weight [64, 3, 7, 7], but got 3-dimensional input of size [3, 224, 224] instead",
        "RuntimeError: Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [1, 1, 3, 32, 32]",
        "Rank of input X is 2, expected 4",
        'ValueError: Input 0 of layer "dense" is incompatible with the layer: expected min_ndim=2, found ndim=1',
        "IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)",
        "Input shape rank mismatch: expected rank 4, got 3",
        "[TRT] Error: setInputShape: wrong number of dimensions",
    ],
    "ort-wrong-shape": [
        "INVALID_ARGUMENT : Got invalid dimensions for input: images for the following indices index: 0 Got: 2 Expected: 1",
    ],
    "shared-library-missing": [
        "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
        "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}",
        "Internal: unable to load shared library: libtorch_cuda.so: cannot open shared object file",
        "Exception from src/inference/src/core.cpp:100: Cannot load library 'libopenvino_intel_gpu_plugin.so'",
        'Error loading "C:\\torch\\lib\\c10_cuda.dll" or one of its dependencies.',
        'OSError: [WinError 126] The specified module could not be found. Error loading "C:\\venv\\Lib\\site-packages\\torch\\lib\\fbgemm.dll" or one of its dependencies.',
        "ImportError: DLL load failed while importing onnxruntime_pybind11_state: The specified module could not be found.",
        'dlopen failed: library "libQnnHtp.so" not found',
        "libtensorrt_llm.so: cannot open shared object file",
    ],
    "shm-too-small": [
        "DataLoader worker (pid 2345) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ],
    "symbol-undefined": [
        "undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ],
    "system-file-limit": [
        "OSError: [Errno 24] Too many open files",
    ],
    "system-oom-killed": [
        "std::bad_alloc",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.73 GiB for an array with shape (1000000, 500) and data type float64",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 6553600000 bytes.",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null) task=python3,pid=2345",
    ],
    "tensorrt-library-missing": [
        "ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory",
    ],
    "tensorrt-memory": [
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::143] Error Code 2: OutOfMemory (Requested size was 4194304 bytes.)",
        "[E] [TRT] Requested amount of GPU memory (8589934592 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.",
        "[W] [TRT] Skipping tactic 0x0000000000000000 due to exception [tunable_graph.cpp:create:114] autotuning: User allocator error allocating 7516192768-byte buffer",
    ],
    "tensorrt-no-implementation": [
        "Could not find any implementation for node {ForeignNode[Conv_0...Reshape_9]}.",
    ],
    "tensorrt-no-profile": [
        "Network has dynamic or shape inputs, but no optimization profile has been defined.",
    ],
    "tensorrt-plugin-missing": [
        "INVALID_ARGUMENT: getPluginCreator could not find plugin BatchedNMS_TRT version 1",
    ],
    "tensorrt-profile-range": [
        "Static dimension mismatch while setting input shape for images. Set dimensions are [4,3,640,640]. Expected dimensions are [1,3,640,640].",
    ],
    "tensorrt-unsupported-op": [
        "No importer registered for op: NonZero",
    ],
    "tensorrt-version-tag": [
        "The engine plan file is not compatible with this version of TensorRT, expecting library version 8.6.1 got 8.5.2, please rebuild.",
        "Serialization (Serialization assertion stdVersionRead == serializedVersion failed.Version tag does not match. Note: Current Version: 213, Serialized Engine Version: 232)",
    ],
    "torch-cuda-oom": [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 22.60 GiB already allocated; 6.06 MiB free; 22.84 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        "HIP out of memory. Tried to allocate 2.00 GiB",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        "MPS backend out of memory (MPS allocated: 17.2 GB, other allocations: 1.1 GB, max allowed: 18.1 GB)",
    ],
    "torch-device-assert": [
        "CUDA error: device-side assert triggered",
    ],
    "torch-device-mismatch": [
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ],
    "torch-dtype-kernel": [
        "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'",
        "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'BFloat16'",
        "TypeError: Got unsupported ScalarType BFloat16",
        "RuntimeError: expected scalar type Half but found Float",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float",
        "TypeError: Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype.",
        "TypeError: can't convert np.ndarray of type numpy.uint16. The only supported types are: float64, float32",
        "RuntimeError: Index put requires the source and destination dtypes match, got Half for the destination and Float for the source.",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        "RuntimeError: mixed dtype (CPU): expect parameter to have scalar type of Float",
        "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
    ],
    "torch-export-op": [
        "Exporting the operator 'aten::grid_sampler' to ONNX opset version 13 is not supported.",
        "torch.onnx.errors.UnsupportedOperatorError: Exporting the operator 'aten::scaled_dot_product_attention' to ONNX opset version 13 is not supported",
    ],
    "torch-fork-cuda": [
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
    ],
    "torch-graph-break": [
        "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(len)",
    ],
    "torch-no-cuda-build": [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    ],
    "torch-no-triton": [
        "RuntimeError: Cannot find a working triton installation. Either the package is not installed or it is too old.",
    ],
    "torch-recompile-limit": [
        "torch._dynamo hit config.recompile_limit (8)",
    ],
    "torch-shape-mismatch": [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 1024x10)",
        "RuntimeError: expected input[1, 1, 28, 28] to have 3 channels, but got 1 channels instead",
    ],
    "torch-vision-ops": [
        "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
    ],
    "triton-compile-error": [
        "triton.compiler.errors.CompilationError: at 15:4: AttributeError(\"module 'triton.language' has no attribute 'foo'\")",
    ],
    "triton-out-of-resources": [
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    ],
    "triton-ptxas-arch": [
        "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
    ],
    "triton-server-load": [
        "E0115 08:01:02.123456 1 model_lifecycle.cc:638] failed to load 'bert' version 1: Invalid argument: unexpected inference input 'ids', allowed inputs are: input_ids",
    ],
    "triton-server-pinned": [
        "Failed to allocate pinned system memory: no pinned memory pool",
    ],
    "triton-server-shape": [
        "[400] [request id: <id_unknown>] inference request batch-size must be <= 8 for 'densenet'",
    ],
    "triton-server-unknown-model": [
        "tritonclient.utils.InferenceServerException: [StatusCode.UNAVAILABLE] Request for unknown model: 'resnet50' is not found",
    ],
    "triton-server-unreachable": [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8001: Failed to connect to remote host: Connection refused",
    ],
}

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
    "words of errors in other senses": """\
INFO: all tensors are contiguous
device lost+found mounted
UserWarning: TypedStorage is deprecated
[I] [TRT] Fused Conv_1 with Relu_2
INFO Loaded 12 kernels for op Conv
2024 INFO memory usage 12 GiB of 80 GiB, out of 3 runs
Input rank: 4, expected: 4, OK
tensor of 4 dimensions, no cycle in the schedule
learning rate cycle detected at step 30
epoch 24: errno: 0
driver version 550.54 is new enough
INFO: model must have 4 dimensions - check passed
life cycle found in config
port 8000 is free
peer-to-peer access enabled between GPU 0 and GPU 1
Requires CUDA compute capability 7.0, found 9.0
the input should be 4D; got 4D
INFO tests: "cycle detection in graph" passed
supports only contiguous batches (default)
has no implementation notes
The model has a Loop with 12 nodes; no kernel was called twice
There is a loop in the model, unrolled 4 times
""",
}
