#include "train/choose_device.h"

#include <cstdlib>

#ifdef HEBB_HAVE_CUDA
#include "core/cuda_code.h"
#endif

namespace hebb {
namespace {

std::optional<int>& own_gpu() {
  static std::optional<int> index = 0;
  return index;
}

}  // namespace

void set_own_gpu(std::optional<int> index) { own_gpu() = index; }

std::string gpu_problem() {
#ifdef HEBB_HAVE_CUDA
  const int count = HEBB_DEVICE::device_count();
  std::string reason = HEBB_DEVICE::device_problem();
  if (count > 0 && own_gpu()) {
    HEBB_DEVICE::use_device(count > 1 ? *own_gpu() : 0);
    reason = HEBB_DEVICE::code_problem();
  }
  if (count > 0 && reason.empty()) { return ""; }
  return "on a machine without a usable GPU" + (reason.empty() ? "" : " (" + reason + ")");
#else
  return "in a build without CUDA";
#endif
}

std::string gpu_note() {
#ifdef HEBB_HAVE_CUDA
  return gpu_problem().empty() ? HEBB_DEVICE::code_note() : "";
#else
  return "";
#endif
}

#ifdef HEBB_HAVE_CUDA
std::string products_of_gpu() {
  const std::string problem = HEBB_DEVICE::products_problem();
  return problem.empty() ? HEBB_DEVICE::products_library() : "no: " + problem;
}
#endif

void require_no_tf32_override() {
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      throw ConfigError(
          "environment variable " + std::string(name), "\"" + std::string(value) + "\"",
          "none: it would change the precision of matrix products, which train.allow_tf32 decides (unset " +
              std::string(name) + ")");
    }
  }
}

DType dtype_of_precision(const std::string& precision) {
  return precision == "fp64" ? DType::f64 : precision == "bf16" ? DType::bf16 : DType::f32;
}

std::string precision_name(DType dtype) {
  return dtype == DType::f64 ? "fp64" : dtype == DType::bf16 ? "bf16" : "fp32";
}

Compute choose_compute(const std::string& device, const std::string& precision, const std::string& where, bool runs) {
  const bool is_option = where == "--";
  const auto key = [&](const char* name) { return where + (where.empty() || is_option ? "" : ".") + name; };
  const std::string problem = device == "cpu" ? "" : gpu_problem();  // only who may take a GPU waits for the driver
  Compute compute;
  if (device == "cuda") {
    compute.device = DeviceKind::cuda;
  } else if (device == "auto") {
    compute.device = problem.empty() && precision != "fp64" ? DeviceKind::cuda : DeviceKind::cpu;
  } else if (device != "cpu") {
    throw ConfigError(key("device"), "\"" + device + "\"", "one of \"auto\", \"cpu\", \"cuda\"");
  }
  const bool cuda = compute.device == DeviceKind::cuda;
  if (cuda && runs) {
    require_no_tf32_override();
    if (!problem.empty()) { throw ConfigError(key("device"), "\"cuda\" " + problem, "\"cpu\" or \"auto\""); }
  }
  if (precision == "fp32" || (precision.empty() && !cuda)) {
    compute.dtype = DType::f32;
  } else if (precision == "fp64") {
    if (cuda) { throw ConfigError(key("precision"), "\"fp64\" on a GPU", "\"fp64\" on the CPU only"); }
    compute.dtype = DType::f64;
  } else if (precision == "bf16" || precision.empty()) {
    compute.dtype = DType::bf16;
  } else {
    throw ConfigError(key("precision"), "\"" + precision + "\"", "one of \"fp32\", \"bf16\", \"fp64\"");
  }
  return compute;
}

}  // namespace hebb
