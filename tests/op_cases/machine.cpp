#include "tests/op_cases/machine.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "core/arena.h"

namespace hebb_test {

using hebb::DType;
using hebb::Shape;
using hebb::Tensor;

namespace {

bool is_integer(DType dtype) { return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8; }

/// f(zero, to double, from double) for the numbers of a type.
template <class F> void dispatch(DType dtype, F&& f) {
  const auto same = [](auto x) { return static_cast<double>(x); };
  switch (dtype) {
    case DType::f64: return f(0.0, same, [](double x) { return x; });
    case DType::f32: return f(0.0f, same, [](double x) { return static_cast<float>(x); });
    case DType::bf16:
      return f(
          hebb::bf16{}, [](hebb::bf16 x) { return static_cast<double>(value_of(x)); },
          [](double x) { return std::isnan(x) ? hebb::bf16{0xFFFF} : rounded<hebb::bf16>(static_cast<float>(x)); });
    case DType::i32: return f(int32_t{}, same, [](double x) { return static_cast<int32_t>(x); });
    case DType::i64: return f(int64_t{}, same, [](double x) { return static_cast<int64_t>(x); });
    case DType::u8: return f(uint8_t{}, same, [](double x) { return static_cast<uint8_t>(x); });
  }
}

std::vector<unsigned char> stored(DType dtype, const Values& from) {
  std::vector<unsigned char> bytes(from.size() * static_cast<size_t>(hebb::dtype_bytes(dtype)));
  dispatch(dtype, [&](auto zero, auto, auto store) {
    for (size_t i = 0; i < from.size(); ++i) {
      zero = store(from[i]);
      std::memcpy(bytes.data() + i * sizeof(zero), &zero, sizeof(zero));
    }
  });
  return bytes;
}

Values loaded(DType dtype, const std::vector<unsigned char>& from) {
  Values values;
  dispatch(dtype, [&](auto zero, auto load, auto) {
    for (size_t i = 0; i < from.size(); i += sizeof(zero)) {
      std::memcpy(&zero, from.data() + i, sizeof(zero));
      values.push_back(load(zero));
    }
  });
  return values;
}

bool all_nan(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
}

/// Each tensor in an allocation of its own, so that the address sanitizer sees accesses outside.
class HostMemory : public Memory {
 public:
  HostMemory() { arena_.set_poison(true); }
  bool is_host() const override { return true; }
  hebb::Stream& stream() override { return stream_; }
  Tensor make(Shape shape, DType dtype) override {
    const auto bytes = static_cast<size_t>(shape.numel() * hebb::dtype_bytes(dtype));
    bytes_.push_back(std::make_unique<unsigned char[]>(bytes));
    std::fill_n(bytes_.back().get(), bytes, static_cast<unsigned char>(0xFF));
    return {bytes_.back().get(), dtype, shape};
  }
  std::unique_ptr<hebb::Workspace> workspace() override { return std::make_unique<hebb::Workspace>(stream_, arena_); }
  void put(const Tensor& to, const void* bytes) override {
    std::copy_n(static_cast<const unsigned char*>(bytes), to.bytes(), static_cast<unsigned char*>(to.data));
  }
  std::vector<unsigned char> get(const Tensor& from) override {
    const auto* begin = static_cast<const unsigned char*>(from.data);
    return {begin, begin + from.bytes()};
  }

 private:
  hebb::Stream stream_;
  hebb::Arena arena_{hebb::DeviceKind::cpu};
  std::vector<std::unique_ptr<unsigned char[]>> bytes_;
};

}  // namespace

int64_t Memory::runs_of(const char*) const { return -1; }

std::unique_ptr<Memory> host_memory() { return std::make_unique<HostMemory>(); }

Machine::Machine(Memory& memory, const Setting& setting)
    : memory_(memory),
      workspace_(memory.workspace()),
      activations_(setting.activations),
      reals_(setting.reals),
      expected_(setting.expected),
      slack_(setting.slack),
      formulas_(setting.formulas) {}

Tensor Machine::input(Shape shape, double scale) { return random(shape, scale, activations_, Role::input); }
Tensor Machine::parameter(Shape shape, double scale) { return random(shape, scale, DType::f32, Role::input); }
Tensor Machine::values(Shape shape, const Values& values) { return add(shape, DType::f32, Role::input, &values); }
Tensor Machine::float_sum(Shape shape, double scale) { return random(shape, scale, DType::f32, Role::result); }
Tensor Machine::scratch(Shape shape, DType dtype) { return poisoned(shape, dtype, Role::scratch); }
Tensor Machine::activations(Shape shape, const Values& values) {
  return add(shape, activations_, Role::input, &values);
}

Tensor Machine::integers(Shape shape, const std::vector<int64_t>& values, DType dtype, bool written) {
  const Values numbers(values.begin(), values.end());
  return add(shape, dtype, written ? Role::result : Role::input, &numbers);
}

Tensor Machine::random(Shape shape, double scale, DType dtype, Role role) {
  Values values;
  for (int64_t i = 0; i < shape.numel(); ++i) { values.push_back(scale * numbers_.next()); }
  return add(shape, dtype, role, &values);
}

Tensor Machine::add(Shape shape, DType dtype, Role role, const Values* values) {
  REQUIRE(shape.numel() > 0);
  const bool is_real = !is_integer(dtype) && dtype != DType::f64;
  const DType stored_as = is_real && memory_.is_host() ? reals_ : dtype;
  entries_.push_back({memory_.make(shape, stored_as), role, values == nullptr});
  const Tensor& tensor = entries_.back().tensor;
  if (values != nullptr) {
    REQUIRE(static_cast<int64_t>(values->size()) == shape.numel());
    const DType exact_in = dtype == DType::bf16 ? dtype : is_real ? DType::f32 : dtype;
    memory_.put(tensor, stored(stored_as, loaded(exact_in, stored(exact_in, *values))).data());
  }
  return tensor;
}

Values Machine::read(const Tensor& tensor) { return loaded(tensor.dtype, memory_.get(tensor)); }

void Machine::note(const char* what, const std::type_info& args) const {
  const char* const file = std::getenv("HEBB_OPERATIONS");
  if (file == nullptr || expected_ == nullptr || memory_.is_host()) { return; }
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(args.name(), nullptr, nullptr, nullptr),
                                                    std::free);
  const std::string whole = name.get();  // hebb::Name
  std::ofstream(file, std::ios::app) << what << ' ' << whole.substr(whole.rfind(':') + 1) << std::endl;
}

bool Machine::finish(double tolerance, bool compares) {
  bool agrees = true;
  for (const Entry& entry : entries_) {
    if (entry.role != Role::result && entry.role != Role::carried) { continue; }
    const bool is_compared = compares && entry.role == Role::result;
    std::vector<unsigned char> bits = memory_.get(entry.tensor);
    const Values found = loaded(entry.tensor.dtype, bits);
    const size_t index = results_.numbers.size();
    if (expected_ != nullptr) {
      const Values& expected = expected_->numbers.at(index);
      CAPTURE(&entry - entries_.data());  // order of creation
      if (is_compared) { agrees &= compare(entry, found, expected, tolerance, std::numeric_limits<float>::min()); }
      memory_.put(entry.tensor, stored(entry.tensor.dtype, expected).data());
    }
    results_.numbers.push_back(found);
    results_.bits.push_back(is_compared ? std::move(bits) : std::vector<unsigned char>());
  }
  return agrees;
}

bool Machine::compare(const Entry& entry, const Values& found, const Values& expected, double tolerance,
                      double floor) const {
  REQUIRE(found.size() == expected.size());
  if (entry.is_poisoned && all_nan(expected)) {  // of a later kernel
    CHECK(all_nan(found));
    return all_nan(found);
  }
  double largest = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected[i])) { largest = std::fmax(largest, std::fabs(expected[i])); }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = found[i] == expected[i] ? 0 : std::fabs(found[i] - expected[i]);
    if (!(difference <= worst)) {
      worst = std::isnan(difference) ? HUGE_VAL : difference;
      at = i;
    }
  }
  const DType dtype = entry.tensor.dtype;
  const double share = dtype == DType::bf16 ? kHalf : std::max(tolerance, entry.tolerance);
  const double limit = is_integer(dtype) ? 0 : slack_ * share * largest + floor;
  CAPTURE(at, largest, worst, limit);
  CHECK(worst <= limit);
  return worst <= limit;
}

void Machine::expect(const Tensor& result, const Values& values, double tolerance) {
  if (!formulas_ || !result.defined()) { return; }
  INFO("against the formula");
  compare({result, Role::result, false}, read(result), values, tolerance, 1e-14);
}

Results Machine::results() {
  for (const Entry& entry : entries_) {
    CAPTURE(&entry - entries_.data());
    CHECK(!(entry.role == Role::result && entry.is_poisoned && all_nan(read(entry.tensor))));
  }
  return std::move(results_);
}

Results run_case(Memory& memory, const Machine::Setting& setting, const Case& body) {
  Machine machine(memory, setting);
  body(machine);
  return machine.results();
}

std::vector<int64_t> documents_of_two_rows(int64_t length) {
  std::vector<int64_t> starts;
  for (int64_t t = 0; t < length; ++t) { starts.push_back(t < 3 ? 0 : t == 3 ? 3 : t < length - 3 ? 4 : length - 3); }
  for (int64_t t = 0; t < length; ++t) { starts.push_back(t < length - 5 ? 0 : length - 5); }
  return starts;
}

}  // namespace hebb_test
