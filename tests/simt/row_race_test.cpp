// Kernels that read and update dictionaries, in small, for the thread sanitizer; see race_test.cpp.
#include <algorithm>
#include <memory>

#include "kernels/kvm/scratch.h"
#include "kernels/ovq/scratch.h"
#include "kernels/vq/vq.h"
#include "support.h"

using namespace hebb_test;
using namespace hebb;

namespace {

/// Tensors of the emulated device that live as long as this.
class Arrays {
 public:
  Tensor random(Shape shape) { return add(floats_, random_values<float>(shape.numel(), ++seed_), shape); }
  Tensor random_bf16(Shape shape) { return add(narrow_, random_values<bf16>(shape.numel(), ++seed_), shape); }
  Tensor zeros_bf16(Shape shape) { return add(narrow_, std::vector<bf16>(static_cast<size_t>(shape.numel())), shape); }
  Tensor zeros(Shape shape) { return add(floats_, std::vector<float>(static_cast<size_t>(shape.numel())), shape); }
  Tensor integers(Shape shape, std::vector<int32_t> values = {}) {
    values.resize(static_cast<size_t>(shape.numel()));
    return add(integers_, values, shape);
  }

 private:
  template <class X>
  static Tensor add(std::vector<std::unique_ptr<DeviceArray<X>>>& to, const std::vector<X>& values, Shape shape) {
    to.push_back(std::make_unique<DeviceArray<X>>(values));
    return to.back()->tensor(shape);
  }
  std::vector<std::unique_ptr<DeviceArray<float>>> floats_;
  std::vector<std::unique_ptr<DeviceArray<bf16>>> narrow_;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> integers_;
  uint32_t seed_ = 0;
};

std::vector<float> values_of(const Tensor& t) {
  simt::synchronize_all();
  std::vector<float> values;
  for (int64_t i = 0; i < t.numel(); ++i) {
    values.push_back(t.dtype == DType::bf16 ? value_of(t.as<bf16>()[i]) : t.as<float>()[i]);
  }
  return values;
}

template <class F> void same_for_all_workers(F&& f) {
  std::vector<std::vector<float>> results;
  for (const int workers : {1, 3}) {
    const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::early, workers});
    results.push_back(f());
  }
  CHECK(results[0] == results[1]);
}

constexpr int64_t kTokens = 5, kRoom = 3;
const Shape kItems{1, kTokens, 1, 2}, kRows{1, 1, kRoom, 2}, kChunk{1, 1, 2, 2}, kUnit{1, 1, kTokens},
    kRoomShape{1, 1, kRoom};

TEST_CASE("ovq does not race", "[threads]") {
  same_for_all_workers([] {
    TestStream stream;
    Arrays a;
    OvqRule rule;
    rule.chunk = 2;
    rule.max_centroids = kRoom;
    const OvqDictionary book{a.zeros(kRows), a.zeros(kRows), a.zeros(kRoomShape), a.integers(kRoomShape)};
    const Tensor o = a.zeros(kItems), lse = a.zeros({1, kTokens, 1}), ids = a.integers(kUnit), q = a.random(kItems),
                 k = a.random(kItems), v = a.random(kItems), starts = a.integers({1, kTokens}), d_q = a.zeros(kItems),
                 d_k = a.zeros(kItems), d_v = a.zeros(kItems);
    run_device(stream, OvqForward{.o = o,
                                  .lse = lse,
                                  .ids = ids,
                                  .dictionary = book,
                                  .pending_k = a.zeros(kChunk),
                                  .pending_v = a.zeros(kChunk),
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .doc_start = starts,
                                  .rule = rule,
                                  .forced = false});
    run_device(stream, OvqBackward{.d_q = d_q,
                                   .d_k = d_k,
                                   .d_v = d_v,
                                   .d_o = a.random(kItems),
                                   .o = o,
                                   .lse = lse,
                                   .ids = ids,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .doc_start = starts,
                                   .rule = rule,
                                   .room = kRoom,
                                   .accumulate_q = false,
                                   .accumulate_k = false,
                                   .accumulate_v = false});
    return values_of(d_k);
  });
}

TEST_CASE("ovq on tensor cores does not race", "[threads]") {
  same_for_all_workers([] {
    TestStream stream;
    Arrays a;
    OvqRule rule;
    rule.chunk = 2;
    rule.max_centroids = 90;
    rule.growth = OvqGrowth::full;
    const int64_t length = 73, room = 72;  // of the last steps two tiles of rows, in two parts
    const Shape items{1, length, 1, 16}, rows{1, 1, room, 16}, chunk{1, 1, 2, 16}, unit{1, 1, length},
        of_rows{1, 1, room};
    const OvqDictionary book{a.zeros(rows),       a.zeros(rows),      a.zeros(of_rows),
                             a.integers(of_rows), a.zeros_bf16(rows), a.zeros_bf16(rows)};
    const Tensor o = a.zeros_bf16(items), lse = a.zeros({1, length, 1}), ids = a.integers(unit),
                 q = a.random_bf16(items), k = a.random_bf16(items), v = a.random_bf16(items),
                 starts = a.integers({1, length}), d_q = a.zeros_bf16(items), d_k = a.zeros_bf16(items),
                 d_v = a.zeros_bf16(items);
    run_device(stream, OvqForward{.o = o,
                                  .lse = lse,
                                  .ids = ids,
                                  .dictionary = book,
                                  .pending_k = a.zeros_bf16(chunk),
                                  .pending_v = a.zeros_bf16(chunk),
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .doc_start = starts,
                                  .rule = rule,
                                  .forced = false});
    run_device(stream, OvqBackward{.d_q = d_q,
                                   .d_k = d_k,
                                   .d_v = d_v,
                                   .d_o = a.random_bf16(items),
                                   .o = o,
                                   .lse = lse,
                                   .ids = ids,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .doc_start = starts,
                                   .rule = rule,
                                   .room = room,
                                   .accumulate_q = false,
                                   .accumulate_k = false,
                                   .accumulate_v = false});
    return values_of(d_k);
  });
}

TEST_CASE("kvm does not race", "[threads]") {
  same_for_all_workers([] {
    TestStream stream;
    Arrays a;
    KvmRule rule;
    rule.chunk = 2;
    rule.window = 1;
    const KvmSlots slots{a.zeros(kRows),         a.zeros(kRows), a.zeros(kRoomShape),
                         a.integers(kRoomShape), a.zeros(kRows), a.zeros(kRows)};
    const Tensor o = a.zeros(kItems), lse = a.zeros({1, kTokens, 1}), routes = a.integers(kUnit), q = a.random(kItems),
                 k = a.random(kItems), v = a.random(kItems), weight = a.random({2}), starts = a.integers({1, kTokens}),
                 sizes = a.integers({3}, {0, 2, 3}), d_k = a.zeros(kItems);
    run_device(stream, KvmForward{.o = o,
                                  .lse = lse,
                                  .routes = routes,
                                  .slots = slots,
                                  .window = {a.zeros(kChunk), a.zeros(kChunk), a.zeros({1, 1, 2})},
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .gate = {},
                                  .norm_weight = weight,
                                  .norm_bias = weight,
                                  .window_temp = {},
                                  .state_temp = {},
                                  .doc_start = starts,
                                  .sizes = sizes,
                                  .rule = rule,
                                  .forced = false});
    run_device(stream, KvmBackward{.d_q = a.zeros(kItems),
                                   .d_k = d_k,
                                   .d_v = a.zeros(kItems),
                                   .d_gate = {},
                                   .d_norm_weight = a.zeros({2}),
                                   .d_norm_bias = a.zeros({2}),
                                   .d_window_temp = {},
                                   .d_state_temp = {},
                                   .d_o = a.random(kItems),
                                   .o = o,
                                   .lse = lse,
                                   .routes = routes,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .gate = {},
                                   .norm_weight = weight,
                                   .norm_bias = weight,
                                   .window_temp = {},
                                   .state_temp = {},
                                   .doc_start = starts,
                                   .sizes = sizes,
                                   .rule = rule,
                                   .room = kRoom,
                                   .accumulate_q = false,
                                   .accumulate_k = false,
                                   .accumulate_v = false,
                                   .accumulate_gate = false});
    return values_of(d_k);
  });
}

TEST_CASE("the selection of codewords does not race", "[threads]") {
  same_for_all_workers([] {
    TestStream stream;
    Arrays a;
    const Tensor ids = a.integers({1, 1, kTokens}), kq = a.zeros(kItems), points = a.random({1, 3, 2});
    device::run(stream, VqSelect{ids, a.random(kItems), points, {}});
    device::run(stream, VqGather{kq, points, ids});
    return values_of(kq);
  });
}

}  // namespace
