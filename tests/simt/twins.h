#pragma once
#include <memory>
#include <optional>
#include <type_traits>

#include "kernels/attention/visible_keys.h"
#include "kernels/bias/bias.h"
#include "kernels/channel_skip/scratch.h"
#include "kernels/delta_gates/scratch.h"
#include "kernels/fwmlp/scratch.h"
#include "kernels/fwpkm/scratch.h"
#include "kernels/ham/ham.h"
#include "kernels/head_norm/scratch.h"
#include "kernels/lact/heads_scratch.h"
#include "kernels/memory_mix/memory_mix.h"
#include "kernels/pair_shift/scratch.h"
#include "kernels/product_key/scratch.h"
#include "kernels/rope/rope.h"
#include "kernels/scaled_l2_norm/scratch.h"
#include "kernels/short_conv/scratch.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"
#include "kernels/slot_select/slot_select.h"
#include "kernels/token_shift/scratch.h"
#include "kernels/value_residual/scratch.h"
#include "support.h"

namespace hebb_test {

/// A tensor that exists twice: fp64 for the CPU kernel, fp32 or bf16 for the emulated one. Null: undefined.
struct Twin {
  int index = -1;
};

/// Runs one kernel on the CPU in fp64 and on the emulated device, on the same numbers, and compares what they write.
class Twins {
 public:
  explicit Twins(hebb::DType activations = hebb::DType::f32) : activations_(activations) {}

  /// Numbers in (-scale, scale) that are exact in the activations' type.
  Twin input(hebb::Shape shape, double scale = 1) { return random(shape, scale, activations_, Role::input); }
  /// The same in fp32 whatever the activations are: parameters, statistics.
  Twin parameter(hebb::Shape shape, double scale = 1) { return random(shape, scale, hebb::DType::f32, Role::input); }
  Twin values(hebb::Shape shape, const std::vector<double>& values) {
    Pair& pair = add(shape, hebb::DType::f32, Role::input);
    pair.start = values;
    return last();
  }
  /// The same in the activations' type, rounded.
  Twin activations(hebb::Shape shape, const std::vector<double>& values) {
    Pair& pair = add(shape, activations_, Role::input);
    for (const double x : values) {
      const float single = static_cast<float>(x);
      pair.start.push_back(is_bf16() && !std::isnan(x) ? value_of(rounded<hebb::bf16>(single)) : single);
    }
    return last();
  }
  Twin integers(hebb::Shape shape, const std::vector<int64_t>& values, hebb::DType dtype = hebb::DType::i32,
                bool written = false) {
    Pair& pair = add(shape, dtype, written ? Role::result : Role::input);
    pair.start.assign(values.begin(), values.end());
    return last();
  }
  /// Sums in fp64 on both sides.
  Twin double_sum(hebb::Shape shape) { return random(shape, 1, hebb::DType::f64, Role::result); }
  /// Overwritten whole by the kernel: NaN before.
  Twin output(hebb::Shape shape) { return poisoned(shape, activations_, Role::result); }
  Twin float_output(hebb::Shape shape) { return poisoned(shape, hebb::DType::f32, Role::result); }
  Twin integer_output(hebb::Shape shape, hebb::DType dtype = hebb::DType::i32) {
    return poisoned(shape, dtype, Role::result);
  }
  /// Read and written: numbers before.
  Twin sum(hebb::Shape shape, double scale = 1) { return random(shape, scale, activations_, Role::result); }
  Twin float_sum(hebb::Shape shape, double scale = 1) { return random(shape, scale, hebb::DType::f32, Role::result); }
  Twin scratch(hebb::Shape shape, hebb::DType dtype = hebb::DType::f32) {
    return poisoned(shape, dtype, Role::scratch);
  }

  /// make(at) returns the args with at(twin) for its tensors. Results may differ by `tolerance` of a tensor's largest
  /// entry.
  template <class Make> void check(Make&& make, double tolerance = 2e-6) {
    run_on_host(make);
    both_ways([&] {
      run_on_device(make);
      for (const Pair& pair : pairs_) {
        if (pair.role == Role::result) { compare(pair, tolerance); }
      }
    });
  }
  /// The CPU's results become the start of later checks, so that a backward kernel can follow its forward kernel.
  template <class Make> void prepare(Make&& make) {
    run_on_host(make);
    for (Pair& pair : pairs_) {
      if (pair.role == Role::result) {
        pair.start = pair.expected();
        pair.role = Role::input;
      }
    }
  }
  std::vector<double> result(Twin twin) const { return pairs_[static_cast<size_t>(twin.index)].expected(); }
  bool is_bf16() const { return activations_ == hebb::DType::bf16; }

 private:
  enum class Role { input, result, scratch };
  struct Pair {
    hebb::Shape shape;
    hebb::DType dtype;  // on the device
    Role role;
    std::vector<double> start, host;
    std::vector<unsigned char> host_integers;
    std::shared_ptr<DeviceArray<unsigned char>> device;

    bool is_integer() const {
      return dtype == hebb::DType::i32 || dtype == hebb::DType::i64 || dtype == hebb::DType::u8;
    }
    hebb::DType host_dtype() const { return is_integer() ? dtype : hebb::DType::f64; }
    std::vector<double> expected() const {
      return is_integer() ? read(host_integers.data(), dtype, shape.numel()) : host;
    }
  };

  Pair& add(hebb::Shape shape, hebb::DType dtype, Role role) {
    pairs_.push_back({shape, dtype, role, {}, {}, {}, nullptr});
    return pairs_.back();
  }
  Twin last() const { return {static_cast<int>(pairs_.size()) - 1}; }
  Twin random(hebb::Shape shape, double scale, hebb::DType dtype, Role role) {
    Pair& pair = add(shape, dtype, role);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const float x = static_cast<float>(scale * numbers_.next());
      pair.start.push_back(dtype == hebb::DType::bf16 ? value_of(rounded<hebb::bf16>(x)) : x);
    }
    return last();
  }
  Twin poisoned(hebb::Shape shape, hebb::DType dtype, Role role) {
    Pair& pair = add(shape, dtype, role);
    pair.start.assign(static_cast<size_t>(shape.numel()), pair.is_integer() ? -1.0 : std::nan(""));
    return last();
  }

  static void store(unsigned char* to, hebb::DType dtype, const std::vector<double>& from) {
    const auto put = [&](auto zero, auto&& convert) {
      for (size_t i = 0; i < from.size(); ++i) {
        const decltype(zero) value = convert(from[i]);
        std::memcpy(to + i * sizeof(value), &value, sizeof(value));
      }
    };
    switch (dtype) {
      case hebb::DType::f64: put(0.0, [](double x) { return x; }); break;
      case hebb::DType::f32: put(0.0f, [](double x) { return static_cast<float>(x); }); break;
      case hebb::DType::bf16:
        put(hebb::bf16{}, [](double x) { return rounded<hebb::bf16>(static_cast<float>(x)); });
        break;
      case hebb::DType::i32: put(int32_t{}, [](double x) { return static_cast<int32_t>(x); }); break;
      case hebb::DType::i64: put(int64_t{}, [](double x) { return static_cast<int64_t>(x); }); break;
      case hebb::DType::u8: put(uint8_t{}, [](double x) { return static_cast<uint8_t>(x); }); break;
    }
  }
  static std::vector<double> read(const unsigned char* from, hebb::DType dtype, int64_t count) {
    std::vector<double> out;
    const auto get = [&](auto zero, auto&& convert) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(&zero, from + i * static_cast<int64_t>(sizeof(zero)), sizeof(zero));
        out.push_back(static_cast<double>(convert(zero)));
      }
    };
    const auto same = [](auto x) { return x; };
    switch (dtype) {
      case hebb::DType::f64: get(0.0, same); break;
      case hebb::DType::f32: get(0.0f, same); break;
      case hebb::DType::bf16: get(hebb::bf16{}, [](hebb::bf16 x) { return value_of(x); }); break;
      case hebb::DType::i32: get(int32_t{}, same); break;
      case hebb::DType::i64: get(int64_t{}, same); break;
      case hebb::DType::u8: get(uint8_t{}, same); break;
    }
    return out;
  }

  template <class Make> void run_on_host(Make&& make) {
    for (Pair& pair : pairs_) {
      if (pair.is_integer()) {
        pair.host_integers.resize(pair.start.size() * static_cast<size_t>(hebb::dtype_bytes(pair.dtype)) + 1);
        store(pair.host_integers.data(), pair.dtype, pair.start);
      } else {
        pair.host = pair.start;
      }
    }
    run_host(make([this](Twin twin) {
      if (twin.index < 0) { return hebb::Tensor{}; }
      Pair& pair = pairs_[static_cast<size_t>(twin.index)];
      void* data =
          pair.is_integer() ? static_cast<void*>(pair.host_integers.data()) : static_cast<void*>(pair.host.data());
      return hebb::Tensor{data, pair.host_dtype(), pair.shape};
    }));
  }

  template <class Make> void run_on_device(Make&& make) {
    for (Pair& pair : pairs_) {
      pair.device = std::make_shared<DeviceArray<unsigned char>>(pair.shape.numel() * hebb::dtype_bytes(pair.dtype));
      store(pair.device->data(), pair.dtype, pair.start);
    }
    TestStream stream;
    run_device(stream, make([this](Twin twin) {
                 if (twin.index < 0) { return hebb::Tensor{}; }
                 const Pair& pair = pairs_[static_cast<size_t>(twin.index)];
                 return hebb::Tensor{pair.device->data(), pair.dtype, pair.shape};
               }));
    simt::synchronize_all();
  }

  void compare(const Pair& pair, double tolerance) const {
    const std::vector<double> expected = pair.expected();
    const std::vector<double> found = read(pair.device->host().data(), pair.dtype, pair.shape.numel());
    double largest = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isfinite(expected[i])) { largest = std::fmax(largest, std::fabs(expected[i])); }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const double difference = found[i] == expected[i] ? 0 : std::fabs(found[i] - expected[i]);
      if (!(difference <= worst)) {  // also NaN
        worst = difference;
        at = i;
      }
    }
    const double limit = pair.is_integer() ? 0 : (pair.dtype == hebb::DType::bf16 ? 8e-3 : tolerance) * largest;
    CAPTURE(&pair - pairs_.data());  // order of creation
    CAPTURE(at, largest, worst, limit);
    CHECK(pair.shape.numel() > 0);
    CHECK(worst <= limit);
  }

  hebb::DType activations_;
  Numbers numbers_{7};
  std::vector<Pair> pairs_;
};

/// Runs test(Twins&) with fp32 and with bf16 activations.
template <class Test> void in_both_types(Test&& test) {
  for (const hebb::DType dtype : {hebb::DType::f32, hebb::DType::bf16}) {
    CAPTURE(hebb::dtype_name(dtype));
    Twins twins(dtype);
    test(twins);
  }
}

/// For tests of all combinations of some options, numbered by the sum of the options: half of them in each type, so
/// that every option, and every pair of options, still meets both.
inline hebb::DType one_of_both_types(int combination) {
  return combination % 2 == 0 ? hebb::DType::f32 : hebb::DType::bf16;
}

/// First document tokens of 2 rows: documents within rows, of one token, and, in rows of 70 tokens, across blocks
/// of 64.
inline std::vector<int64_t> documents_of_two_rows(int64_t length = 70) {
  std::vector<int64_t> starts;
  for (int64_t t = 0; t < length; ++t) { starts.push_back(t < 3 ? 0 : t == 3 ? 3 : t < length - 3 ? 4 : length - 3); }
  for (int64_t t = 0; t < length; ++t) { starts.push_back(t < length - 5 ? 0 : length - 5); }
  return starts;
}

}  // namespace hebb_test
