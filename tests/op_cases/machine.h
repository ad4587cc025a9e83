#pragma once
// Include the headers of the operations first: Machine::run() finds the kernels declared by then.
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "core/cuda_device.h"
#include "core/workspace.h"
#include "kernels/add/add.h"  // the namespaces of kernels
#include "tests/op_cases/element_values.h"
#include "tests/test.h"

namespace hebb_test {

#if defined(HEBB_SIMT) || defined(HEBB_HAVE_CUDA)
namespace device = hebb::HEBB_DEVICE;
#else
namespace device = hebb::cpu;
#endif

using Values = std::vector<double>;

/// Memory of the CPU, of the emulated device or of a GPU, for the tensors of one case.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual bool is_host() const { return false; }
  virtual hebb::Stream& stream() = 0;
  /// Filled with 0xFF: NaN, -1.
  virtual hebb::Tensor make(hebb::Shape shape, hebb::DType dtype) = 0;
  virtual std::unique_ptr<hebb::Workspace> workspace() = 0;
  virtual void put(const hebb::Tensor& to, const void* bytes) = 0;
  /// Waits for the kernels before.
  virtual std::vector<unsigned char> get(const hebb::Tensor& from) = 0;
  /// How often kernels ran whose name contains `part`; -1 where nobody counts.
  virtual int64_t runs_of(const char* part) const;
};

/// Tensors of the CPU.
std::unique_ptr<Memory> host_memory();
/// Of the emulated device; in test_simt only.
std::unique_ptr<Memory> emulated_memory();

/// What the results of a case were after each of its kernels.
struct Results {
  std::vector<Values> numbers;
  std::vector<std::vector<unsigned char>> bits;
};

/// A kernel that a run has to launch, or must not.
struct Launches {
  const char* kernel = nullptr;
  bool wanted = true;
};

/// Of a result's largest entry, in fp32: one rounding of each result, and of sums of a few hundred terms.
constexpr double kSingle = 2e-6;
/// In bf16: one rounding of each result to 8 bits is 2^-9 of it, 2^-8 of numbers just above a power of 2.
constexpr double kHalf = 8e-3;

/// Runs the kernels of one case. A case is a function of a Machine. It makes tensors, by the same calls wherever it
/// runs, and runs kernels on them. What the CPU finds in fp64 is kept. Elsewhere each kernel's results are compared
/// with it and replaced by it, so that a backward kernel gets what the CPU's forward kernel found.
class Machine {
 public:
  struct Setting {
    hebb::DType activations;            // what the case is about: f32, bf16 or f64
    hebb::DType reals;                  // of the CPU's tensors: f64 or f32
    const Results* expected = nullptr;  // null: whatever is found is right
    double slack = 1;                   // of all tolerances
    bool formulas = false;              // has_formulas()
  };
  Machine(Memory& memory, const Setting& setting);

  /// Numbers in (-scale, scale) that are exact in the activations' type.
  hebb::Tensor input(hebb::Shape shape, double scale = 1);
  /// The same in fp32 whatever the activations are: parameters, statistics.
  hebb::Tensor parameter(hebb::Shape shape, double scale = 1);
  hebb::Tensor values(hebb::Shape shape, const Values& values);
  hebb::Tensor double_values(hebb::Shape shape, const Values& values) {
    return add(shape, hebb::DType::f64, Role::input, &values);
  }
  /// The same in the activations' type, rounded.
  hebb::Tensor activations(hebb::Shape shape, const Values& values);
  hebb::Tensor integers(hebb::Shape shape, const std::vector<int64_t>& values, hebb::DType dtype = hebb::DType::i32,
                        bool written = false);
  /// Overwritten whole by a kernel: NaN or -1 before.
  hebb::Tensor output(hebb::Shape shape) { return poisoned(shape, activations_, Role::result); }
  hebb::Tensor float_output(hebb::Shape shape) { return poisoned(shape, hebb::DType::f32, Role::result); }
  /// Which may differ by `tolerance` where the kernel's tolerance is less.
  hebb::Tensor float_output(hebb::Shape shape, double tolerance) {
    const hebb::Tensor tensor = float_output(shape);
    entries_.back().tolerance = tolerance;
    return tensor;
  }
  hebb::Tensor double_output(hebb::Shape shape) { return poisoned(shape, hebb::DType::f64, Role::result); }
  hebb::Tensor integer_output(hebb::Shape shape) { return poisoned(shape, hebb::DType::i32, Role::result); }
  /// Read and written: numbers before. double_sum is in fp64 everywhere.
  hebb::Tensor sum(hebb::Shape shape, double scale = 1) { return random(shape, scale, activations_, Role::result); }
  hebb::Tensor float_sum(hebb::Shape shape, double scale = 1);
  hebb::Tensor float_values(hebb::Shape shape, const Values& values) {
    return add(shape, hebb::DType::f32, Role::result, &values);
  }
  hebb::Tensor double_sum(hebb::Shape shape) { return random(shape, 1, hebb::DType::f64, Role::result); }
  /// A gradient of activations or in fp32 that a kernel adds to or overwrites.
  hebb::Tensor gradient(hebb::Shape shape, bool adds) { return adds ? sum(shape) : output(shape); }
  hebb::Tensor float_gradient(hebb::Shape shape, bool adds) { return adds ? float_sum(shape) : float_output(shape); }
  /// Whatever a kernel leaves there: NaN before, not compared.
  hebb::Tensor scratch(hebb::Shape shape, hebb::DType dtype = hebb::DType::f32);
  hebb::Tensor activation_scratch(hebb::Shape shape) { return scratch(shape, activations_); }
  /// What a kernel leaves for a later one, of which it may leave a part as it was: numbers before, not compared.
  hebb::Tensor carried(hebb::Shape shape) { return random(shape, 1, activations_, Role::carried); }
  /// Scratch that lives as long as this.
  hebb::Workspace& workspace() { return *workspace_; }

  /// Results may differ by `tolerance` of a tensor's largest entry; of tensors in bf16 by kHalf.
  template <class Args> void run(const Args& args, double tolerance = kSingle, const Launches& launches = {}) {
    INFO(typeid(Args).name());
    const int64_t before = launches.kernel == nullptr ? 0 : memory_.runs_of(launches.kernel);
    note("begins", typeid(Args));
    launch(args);
    wait();
    if (launches.kernel != nullptr && before >= 0) {
      INFO(launches.kernel);
      CHECK((memory_.runs_of(launches.kernel) > before) == launches.wanted);
    }
    note(finish(tolerance, true) ? "agrees" : "differs", typeid(Args));
  }
  /// Gives what the CPU finds, which other machines may decide otherwise after a rounding.
  template <class Args> void given(const Args& args) {
    INFO(typeid(Args).name());
    if (expected_ == nullptr) { launch(args); }
    finish(0, false);
  }
  /// Whether expect() compares: formulas are computed then only.
  bool has_formulas() const { return formulas_; }
  /// That a result, if it is defined, has a formula's values, within `tolerance` of the largest entry, and 1e-14.
  void expect(const hebb::Tensor& result, const Values& values, double tolerance = 1e-12);

  Values read(const hebb::Tensor& tensor);
  bool is_bf16() const { return activations_ == hebb::DType::bf16; }
  /// What the kernels found. That each output was written is checked here.
  Results results();

 private:
  enum class Role { input, result, carried, scratch };
  struct Entry {
    hebb::Tensor tensor;
    Role role;
    bool is_poisoned;
    double tolerance = 0;
  };

  template <class Args> void launch(const Args& args) {
    hebb::Stream& stream = memory_.stream();
    if constexpr (requires(hebb::Workspace & workspace) { plan(workspace, args); }) {
      const std::unique_ptr<hebb::Workspace> workspace = memory_.workspace();
      const auto scratch = plan(*workspace, args);
      memory_.is_host() ? hebb::cpu::run(stream, args, scratch) : device::run(stream, args, scratch);
      wait();  // before the scratch goes
    } else {
      memory_.is_host() ? hebb::cpu::run(stream, args) : device::run(stream, args);
    }
  }
  void wait() { memory_.get({nullptr, hebb::DType::u8, {0}}); }
  hebb::Tensor add(hebb::Shape shape, hebb::DType dtype, Role role, const Values* values);
  hebb::Tensor random(hebb::Shape shape, double scale, hebb::DType dtype, Role role);
  hebb::Tensor poisoned(hebb::Shape shape, hebb::DType dtype, Role role) { return add(shape, dtype, role, nullptr); }
  /// Both: whether all results are within their limits.
  bool finish(double tolerance, bool compares);
  bool compare(const Entry& entry, const Values& found, const Values& expected, double tolerance, double floor) const;
  /// A line "what operation" in the file that the environment names in HEBB_OPERATIONS, for tools/gpu_check.sh
  /// --status: of kernels of a GPU or of the emulator.
  void note(const char* what, const std::type_info& args) const;

  Memory& memory_;
  std::unique_ptr<hebb::Workspace> workspace_;
  hebb::DType activations_, reals_;
  const Results* expected_;
  double slack_;
  bool formulas_;
  Numbers numbers_{7};
  std::vector<Entry> entries_;
  Results results_;
};

using Case = std::function<void(Machine&)>;

Results run_case(Memory& memory, const Machine::Setting& setting, const Case& body);

/// Runs a case with fp32 and with bf16 activations, or with those named. Each test program has its own: test_kernels
/// compares with formulas and the CPU's fp32 kernels, test_simt the emulated kernels, test_device those of a GPU.
void check(hebb::DType activations, const Case& body);
inline void check(const Case& body) {
  check(hebb::DType::f32, body);
  check(hebb::DType::bf16, body);
}

/// For tests of all combinations of some options, numbered by the sum of the options: half of them in each type, so
/// that every option, and every pair of options, still meets both.
inline hebb::DType one_of_both_types(int combination) {
  return combination % 2 == 0 ? hebb::DType::f32 : hebb::DType::bf16;
}

/// First document tokens of 2 rows: documents within rows, of one token, and, in rows of 70 tokens, across blocks
/// of 64.
std::vector<int64_t> documents_of_two_rows(int64_t length = 70);

}  // namespace hebb_test
