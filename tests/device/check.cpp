// Cases of operations: the kernels of a GPU against the CPU's in fp64.
#include "tests/device/device.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {
namespace {

class GpuMemory : public Memory {
 public:
  GpuMemory() { stream_.device = hebb::DeviceKind::cuda; }
  hebb::Stream& stream() override { return stream_; }
  hebb::Tensor make(hebb::Shape shape, hebb::DType dtype) override {
    buffers_.emplace_back(arena_, shape, dtype, "case");
    const hebb::Tensor tensor = buffers_.back();
    put(tensor, std::vector<unsigned char>(static_cast<size_t>(tensor.bytes()), 0xFF).data());
    return tensor;
  }
  std::unique_ptr<hebb::Workspace> workspace() override { return std::make_unique<hebb::Workspace>(stream_, arena_); }
  void put(const hebb::Tensor& to, const void* bytes) override { hebb::copy_to_device(stream_, to, bytes); }
  std::vector<unsigned char> get(const hebb::Tensor& from) override {
    std::vector<unsigned char> bytes(static_cast<size_t>(from.bytes()));
    if (!bytes.empty()) { hebb::copy_to_host(stream_, bytes.data(), from); }
    return bytes;
  }

 private:
  hebb::Stream stream_;
  hebb::Arena arena_{hebb::DeviceKind::cuda};
  std::vector<hebb::Buffer> buffers_;
};

/// The emulator sums in order, in fp32, and has the host's exp(). Tensor cores sum in an order of their own, compilers
/// contract products and sums, and a GPU's exp() is off by 2 units in the last place.
constexpr double kSlack = 4;

}  // namespace

void check(hebb::DType activations, const Case& body) {
  static const bool is_gpu =
      hebb::testing::has_device() && hebb::cuda::device_info().name != "SIMT emulator";  // which tests/simt does
  if (!is_gpu) { return; }
  CAPTURE(hebb::dtype_name(activations));
  const Results expected = run_case(*host_memory(), {.activations = activations, .reals = hebb::DType::f64}, body);
  GpuMemory memory;
  run_case(memory, {.activations = activations, .reals = hebb::DType::f64, .expected = &expected, .slack = kSlack},
           body);
}

}  // namespace hebb_test
