// Cases of operations: the emulated kernels against the CPU's in fp64, in both orders, which must give the same bits,
// and in bf16 with sums of tensor cores that are cut off as on Hopper.
#include "support.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {
namespace {

class EmulatedMemory : public Memory {
 public:
  hebb::Stream& stream() override { return stream_; }
  hebb::Tensor make(hebb::Shape shape, hebb::DType dtype) override {
    arrays_.push_back(std::make_unique<DeviceArray<unsigned char>>(shape.numel() * hebb::dtype_bytes(dtype)));
    return {arrays_.back()->data(), dtype, shape};
  }
  std::unique_ptr<hebb::Workspace> workspace() override { return std::make_unique<GuardedWorkspace>(stream_); }
  void put(const hebb::Tensor& to, const void* bytes) override {
    std::memcpy(to.data, bytes, static_cast<size_t>(to.bytes()));
  }
  std::vector<unsigned char> get(const hebb::Tensor& from) override {
    simt::check_guards();  // waits for all streams, too
    const auto* begin = static_cast<const unsigned char*>(from.data);
    return {begin, begin + from.bytes()};
  }
  int64_t runs_of(const char* part) const override { return simt::runs_of(part); }

 private:
  TestStream stream_;
  hebb::PlannedSharedMemory gpu_{simt::device_model().shared_bytes};
  std::vector<std::unique_ptr<DeviceArray<unsigned char>>> arrays_;
};

}  // namespace

std::unique_ptr<Memory> emulated_memory() { return std::make_unique<EmulatedMemory>(); }
void check(hebb::DType activations, const Case& body) {
  CAPTURE(hebb::dtype_name(activations));
  const Results expected = run_case(*host_memory(), {.activations = activations, .reals = hebb::DType::f64}, body);
  std::vector<Results> found;
  both_ways([&] {
    found.push_back(run_case(*emulated_memory(),
                             {.activations = activations, .reals = hebb::DType::f64, .expected = &expected}, body));
  });
  CHECK(found[0].bits == found[1].bits);
  if (activations == hebb::DType::bf16) {
    INFO("sums of tensor cores are cut off");
    simt::DeviceModel model = simt::device_model();
    model.truncates = true;
    const simt::ScopedDeviceModel truncates(model);
    run_case(*emulated_memory(), {.activations = activations, .reals = hebb::DType::f64, .expected = &expected}, body);
  }
}

}  // namespace hebb_test
