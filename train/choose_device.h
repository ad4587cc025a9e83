#pragma once
#include <optional>
#include <string>

#include "core/stream.h"

namespace hebb {

/// Device and number format of a run, as asked for on the command line or in the configuration.
struct Compute {
  DeviceKind device = DeviceKind::cpu;
  DType dtype = DType::f32;
  bool cuda_graphs = true;  // whether a GPU may launch passes that repeat as recorded graphs
};

/// The GPU of this process among those that it sees: what a launcher calls the local rank, the first unless said. A
/// process that sees one takes that one, whatever its index here. None: the process starts others that take GPUs, and
/// takes none.
void set_own_gpu(std::optional<int> index);

/// Where it is that no GPU can be used, and why, to follow on what was asked for ("on a machine without ..."); empty
/// where one can. The calling thread uses the process' own GPU from here on, and a context is made there and on no
/// other GPU. Without one only the driver and the number of GPUs are asked for, not whether this build has code for
/// them. Errors: ConfigError for an own GPU that does not exist.
std::string gpu_problem();

/// What one should know of a usable GPU: that its driver has to compile the kernels. Mostly empty.
std::string gpu_note();

/// The library of matrix products on the GPU and its version, or why there is none. In builds with CUDA.
std::string products_of_gpu();

/// Throws ConfigError where NVIDIA_TF32_OVERRIDE is set: libraries of the GPU would take it over what train.allow_tf32
/// says, silently.
void require_no_tf32_override();

/// "fp32", "bf16" or "fp64".
DType dtype_of_precision(const std::string& precision);
std::string precision_name(DType dtype);

/// device: "auto", "cpu" or "cuda"; precision: "fp32", "bf16", "fp64", or "" for the device's default
/// (docs/training.md). `auto` takes the first usable GPU unless the precision is fp64, else the CPU.
/// `where`: the configuration object that asks ("train"), or "--" for options of the command line.
/// Throws ConfigError(where, ...) for what this build or machine cannot do: nothing falls back. `runs` false: plans,
/// which may name a GPU that this machine does not have.
Compute choose_compute(const std::string& device, const std::string& precision, const std::string& where,
                       bool runs = true);

}  // namespace hebb
