// Sparse delta memory: all kernels of a layer's two passes, against the CPU's in fp64. The layout of what they hand to
// each other differs, so they run as one.
#include <algorithm>
#include <map>

#include "kernels/sparse_delta/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

/// Tensors on the host, in fp64.
class HostMemory {
 public:
  static constexpr DType kPlaces = DType::f64, kSums = DType::f64;

  Tensor make(Shape shape, DType dtype) {
    bytes_.push_back(std::make_unique<std::vector<unsigned char>>(
        static_cast<size_t>(shape.numel() * dtype_bytes(dtype)) + 1, 0xFF));
    return {bytes_.back()->data(), dtype, shape};
  }
  Tensor put(Shape shape, const std::vector<double>& values, DType) {
    const Tensor t = make(shape, DType::f64);
    std::copy(values.begin(), values.end(), t.as<double>());
    return t;
  }
  std::vector<double> get(const Tensor& t) const { return {t.as<double>(), t.as<double>() + t.numel()}; }
  template <class Args> void run(const Args& args) { run_host(args); }
  Workspace& workspace() { return workspace_; }

 private:
  Stream stream_;
  Arena arena_{DeviceKind::cpu};
  Workspace workspace_{stream_, arena_};
  std::vector<std::unique_ptr<std::vector<unsigned char>>> bytes_;
};

/// Tensors on the emulated device, Stored for M and G.
template <class Stored> class DeviceMemory {
 public:
  static constexpr DType kPlaces = dtype_of<Stored>, kSums = DType::f32;

  Tensor make(Shape shape, DType dtype) {
    bytes_.push_back(std::make_unique<DeviceArray<unsigned char>>(shape.numel() * dtype_bytes(dtype)));
    return {bytes_.back()->data(), dtype, shape};
  }
  Tensor put(Shape shape, const std::vector<double>& values, DType dtype) {
    const Tensor t = make(shape, dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::bf16) {
        t.as<bf16>()[i] = rounded<bf16>(static_cast<float>(values[i]));
      } else {
        t.as<float>()[i] = static_cast<float>(values[i]);
      }
    }
    return t;
  }
  std::vector<double> get(const Tensor& t) {
    simt::check_guards();
    std::vector<double> out;
    for (int64_t i = 0; i < t.numel(); ++i) {
      out.push_back(t.dtype == DType::bf16 ? value_of(t.as<bf16>()[i]) : t.as<float>()[i]);
    }
    return out;
  }
  template <class Args> void run(const Args& args) { run_device(stream_, args); }
  Workspace& workspace() { return workspace_; }

 private:
  TestStream stream_;
  GuardedWorkspace workspace_{stream_};
  std::vector<std::unique_ptr<DeviceArray<unsigned char>>> bytes_;
};

struct Sizes {
  int64_t batch, length, heads, slots, dim, writes, reads;
  int64_t tokens() const { return batch * length; }
};

struct Case {
  Sizes n;
  std::vector<int32_t> lengths;  // of a row's documents
  bool by_key, has_memory, accumulate;
  std::vector<double> k, q, g, beta, v, memory, d_y, state, before;
  std::vector<int32_t> write_slots, read_slots;
  int64_t slots_of_index = 0;  // if not 0: as many slots as the device can sort for one row and head at a time

  Case(Sizes sizes, std::vector<int32_t> document_lengths, bool decay_by_key, bool memory_is_learned, bool bf16_rows)
      : n(sizes),
        lengths(std::move(document_lengths)),
        by_key(decay_by_key),
        has_memory(memory_is_learned),
        accumulate(by_key) {
    uint32_t seed = 1;
    const auto numbers = [&seed](int64_t count, double scale) {
      return as_double(random_values<float>(count, seed++, scale));
    };
    const int64_t heads = n.tokens() * n.heads;
    k = numbers(heads * n.writes, 0.7);
    q = numbers(heads * n.reads, 1);
    g = numbers(heads, 1);
    beta = numbers(heads, 1);
    const int64_t table = n.heads * n.slots * n.dim;
    memory = bf16_rows ? as_double(random_values<bf16>(table, seed++)) : numbers(table, 1);
    state = numbers(n.batch * n.heads * n.slots * n.dim, 1);
    v = as_double(random_values<float>(heads * n.dim, 91));
    d_y = as_double(random_values<float>(heads * n.dim, 92));
    before = as_double(random_values<float>(heads * n.dim, 93));
    for (double& x : g) {
      x = -1 - x;  // log decays
    }
    g[3] = by_key ? g[3] : -200;  // underflows in fp32
    for (double& x : beta) { x = std::fabs(x); }
    write_slots = choose(n.writes, 5, n.slots);
    read_slots = choose(n.reads, 6, n.slots);
  }
  /// Ascending distinct slots below `limit` per token and head.
  std::vector<int32_t> choose(int64_t count, uint32_t seed, int64_t limit) const {
    Numbers numbers(seed);
    std::vector<int32_t> out;
    for (int64_t i = 0; i < n.tokens() * n.heads; ++i) {
      std::vector<int32_t> all(static_cast<size_t>(limit));
      for (size_t s = 0; s < all.size(); ++s) { all[s] = static_cast<int32_t>(s); }
      for (int64_t j = 0; j < count; ++j) {
        std::swap(all[static_cast<size_t>(j)],
                  all[static_cast<size_t>(j) + numbers.below(static_cast<uint32_t>(limit - j))]);
      }
      std::sort(all.begin(), all.begin() + count);
      out.insert(out.end(), all.begin(), all.begin() + count);
    }
    return out;
  }

  template <class Memory> Tensor integers(Memory& memory_of, Shape shape, const std::vector<int32_t>& values) const {
    const Tensor t = memory_of.make(shape, DType::i32);
    std::copy(values.begin(), values.end(), t.as<int32_t>());
    return t;
  }

  /// Everything that the kernels compute, by name.
  template <class Memory> std::map<std::string, std::vector<double>> run(bool carried) const {
    Memory m;
    constexpr DType sums = Memory::kSums;
    const Shape heads{n.tokens(), n.heads}, writes{n.tokens(), n.heads, n.writes}, reads{n.tokens(), n.heads, n.reads},
        values{n.tokens(), n.heads, n.dim}, table{n.heads, n.slots, n.dim};
    std::vector<int32_t> list;
    for (int64_t b = 0; b < n.batch; ++b) {
      auto at = static_cast<int32_t>(b * n.length);
      for (const int32_t length : lengths) {
        list.insert(list.end(), {at, length, static_cast<int32_t>(b), carried ? 1 : 0});
        at += length;
      }
    }
    const auto sequences = static_cast<int64_t>(list.size()) / 4;
    SparseDeltaInputs in{};
    in.write_weights = m.put(writes, k, sums);
    in.read_weights = m.put(reads, q, sums);
    in.beta = m.put(heads, beta, sums);
    in.v = m.put(values, v, sums);
    in.memory = has_memory ? m.put(table, memory, carried ? sums : Memory::kPlaces) : Tensor{};
    in.write_slots = integers(m, writes, write_slots);
    in.read_slots = integers(m, reads, read_slots);
    in.sequences = integers(m, {sequences, 4}, list);
    in.batch = n.batch;
    in.slots = n.slots;
    in.place_type = carried ? sums : Memory::kPlaces;
    const Tensor decays = m.put(heads, g, sums);
    in.decay = m.make(by_key ? writes : heads, sums);
    m.run(SparseDeltaDecay{in.decay, decays, by_key ? in.write_weights : Tensor{}});
    const Tensor y = m.make(values, sums), error = m.make(values, sums);
    if (carried) {
      const Tensor carried_state = m.put({n.batch, n.heads, n.slots, n.dim}, state, sums);
      m.run(SparseDeltaForward{.y = y, .error = {}, .state = carried_state, .in = in});
      return {{"y", m.get(y)}, {"state", m.get(carried_state)}};
    }
    const auto index = [&](bool backward) {
      in.uses = sparse_delta_uses(m.workspace(), in.write_slots, in.read_slots, in.sequences, n.batch, backward);
      m.run(SparseDeltaIndex{.uses = in.uses,
                             .write_slots = in.write_slots,
                             .read_slots = in.read_slots,
                             .sequences = in.sequences,
                             .batch = n.batch,
                             .slots = in.uses.order.defined() ? std::max(n.slots, slots_of_index) : n.slots});
    };
    index(false);
    m.run(SparseDeltaForward{.y = y, .error = error, .state = {}, .in = in});
    index(true);
    const SparseDeltaProducts products = sparse_delta_products(m.workspace(), in);
    const Tensor d_v = m.put(values, before, sums), d_memory = m.put(table, memory, sums);
    m.run(SparseDeltaBackward{.d_v = d_v,
                              .d_memory = has_memory ? d_memory : Tensor{},
                              .products = products,
                              .d_y = m.put(values, d_y, sums),
                              .error = error,
                              .in = in,
                              .accumulate = accumulate});
    const Tensor d_k = m.make(writes, sums), d_q = m.make(reads, sums), d_g = m.make(heads, sums),
                 d_beta = m.make(heads, sums);
    m.run(SparseDeltaScan{.d_write_weights = d_k,
                          .d_read_weights = d_q,
                          .d_g = d_g,
                          .d_beta = d_beta,
                          .products = products,
                          .g = decays,
                          .in = in});
    return {{"y", m.get(y)},     {"error", m.get(error)}, {"d_v", m.get(d_v)}, {"d_memory", m.get(d_memory)},
            {"d_k", m.get(d_k)}, {"d_q", m.get(d_q)},     {"d_g", m.get(d_g)}, {"d_beta", m.get(d_beta)}};
  }

  /// fp32: sums over up to 30 tokens of products of up to 100 terms, some of which cancel. bf16 rows: of their
  /// roundings, 2^-9 at each write, those of all tokens that wrote a slot add up; for decays in differences of what
  /// they were taken from.
  template <class Stored> void check(bool carried) const {
    const auto expected = run<HostMemory>(carried);
    both_ways([&] {
      const auto found = run<DeviceMemory<Stored>>(carried);
      for (const auto& [name, values] : expected) {
        CAPTURE(name);
        const double rounding = name == "d_g" ? 5e-2 : 1e-2;
        CHECK(relative_error(found.at(name), values) < (std::is_same_v<Stored, bf16> ? rounding : 5e-6));
      }
    });
  }
};

TEST_CASE("sparse delta memories and their gradients equal the CPU's", "[fast]") {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true);
  CAPTURE(by_key, has_memory);
  const Sizes sizes{.batch = 2, .length = 13, .heads = 2, .slots = 25, .dim = 71, .writes = 7, .reads = 9};
  Case(sizes, {1, 8, 4}, by_key, has_memory, false).check<float>(false);
  Sizes packed = sizes;
  packed.dim = 72;
  Case(packed, {1, 8, 4}, by_key, has_memory, true).check<bf16>(false);
}

TEST_CASE("sparse delta memories of few and of many slots a token equal the CPU's", "[fast]") {
  const Sizes one{.batch = 1, .length = 6, .heads = 1, .slots = 4, .dim = 3, .writes = 1, .reads = 4};
  Case(one, {2, 4}, false, true, false).check<float>(false);
  Case(one, {2, 4}, true, true, false).check<float>(false);
  Case({.batch = 1, .length = 5, .heads = 1, .slots = 81, .dim = 33, .writes = 70, .reads = 3}, {5}, true, true, false)
      .check<float>(false);
  Case({.batch = 1, .length = 5, .heads = 1, .slots = 81, .dim = 40, .writes = 70, .reads = 68}, {5}, true, true, true)
      .check<bf16>(false);
  Case({.batch = 1, .length = 5, .heads = 1, .slots = 4, .dim = 8, .writes = 1, .reads = 2}, {5}, false, true, true)
      .check<bf16>(false);
}

/// Each document writes each of 7 slots some ten times and reads 12; heads keep most of it.
Case many_overwrites(bool by_key, bool has_memory, bool bf16_rows, int64_t reads) {
  Case c({.batch = 2, .length = 40, .heads = 2, .slots = 12, .dim = 72, .writes = 3, .reads = reads}, {25, 1, 14},
         by_key, has_memory, bf16_rows);
  c.write_slots = c.choose(c.n.writes, 5, 7);
  for (double& x : c.g) { x *= 0.05; }
  return c;
}

TEST_CASE("sparse delta memories whose slots are overwritten many times equal the CPU's", "[fast]") {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true);
  CAPTURE(by_key, has_memory);
  many_overwrites(by_key, has_memory, false, 4).check<float>(false);
  many_overwrites(by_key, has_memory, true, 4).check<bf16>(false);
}

TEMPLATE_TEST_CASE("the backward pass of a sparse delta memory runs over the M of the forward pass, bit for bit",
                   "[fast]", float, bf16) {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true);
  CAPTURE(by_key, has_memory);
  Case c = many_overwrites(by_key, has_memory, std::is_same_v<TestType, bf16>, 1);
  // A token reads one slot, and the loss is one channel of it: the reading's weight gets the reading as its gradient.
  std::fill(c.q.begin(), c.q.end(), 1.0);
  std::fill(c.d_y.begin(), c.d_y.end(), 0.0);
  const auto channel = [&](size_t head) {
    return head * static_cast<size_t>(c.n.dim) + head * 7 % static_cast<size_t>(c.n.dim);
  };
  for (size_t head = 0; head < c.q.size(); ++head) { c.d_y[channel(head)] = 1; }
  both_ways([&] {
    const auto found = c.run<DeviceMemory<TestType>>(false);
    for (size_t head = 0; head < c.q.size(); ++head) {
      CAPTURE(head);
      CHECK(found.at("d_q")[head] == found.at("y")[channel(head)]);
    }
  });
}

TEST_CASE("slots of rows and heads that are sorted one after the other are those of the CPU", "[fast]") {
  Case c({.batch = 3, .length = 13, .heads = 2, .slots = 25, .dim = 5, .writes = 7, .reads = 9}, {9, 4}, false, true,
         false);
  c.slots_of_index = int64_t{1} << 30;
  c.check<float>(false);
}

TEST_CASE("codes of slots are those of the drawn example", "[fast]") {
  // kernels/sparse_delta/codes.h
  using List = std::vector<int32_t>;
  constexpr int32_t x = INT32_MIN;
  const List write_slots{5, 6, 5, 7, 6, 8}, read_slots{6, 8, 5, 8, 5, 6};
  const auto run = [&](auto& m, bool backward) {
    const auto put = [&](Shape shape, const List& values) {
      const Tensor t = m.make(shape, DType::i32);
      std::copy(values.begin(), values.end(), t.template as<int32_t>());
      return t;
    };
    const Tensor writes = put({3, 1, 2}, write_slots), reads = put({3, 1, 2}, read_slots),
                 sequences = put({1, 4}, {0, 3, 0, 0});
    const SparseDeltaUses uses = sparse_delta_uses(m.workspace(), writes, reads, sequences, 1, backward);
    m.run(SparseDeltaIndex{
        .uses = uses, .write_slots = writes, .read_slots = reads, .sequences = sequences, .batch = 1, .slots = 9});
    return uses;
  };
  const auto list = [](const Tensor& t, int64_t count) { return List(t.as<int32_t>(), t.as<int32_t>() + count); };
  HostMemory host;
  const SparseDeltaUses numbers = run(host, false);
  CHECK(list(numbers.write_codes, 6) == List{~0, ~1, 0, ~3, 1, ~2});
  CHECK(list(numbers.read_codes, 6) == List{1, ~2, 0, ~2, 0, 1});
  CHECK(list(numbers.numbered, 4) == List{5, 6, 8, 7});
  both_ways([&] {
    DeviceMemory<float> forward, backward;
    const SparseDeltaUses codes = run(forward, false), uses = run(backward, true);
    CHECK(list(codes.write_codes, 6) == List{~5, ~6, 5, ~7, 6, ~8});
    CHECK(list(codes.read_codes, 6) == List{6, ~8, 5, ~8, 5, 6});
    CHECK(list(codes.first_use, 12) == List{5, 6, -1, 8, -1, 7, -1, -1, -1, -1, -1, -1});
    CHECK(list(codes.order, 12) == List{0, 4, 6, 10, 1, 2, 8, 11, 5, 3, 7, 9});
    CHECK(list(uses.write_codes, 6) == List{~5, ~6, 5, ~7, 6, ~8});
    CHECK(list(uses.read_codes, 6) == List{x, ~8, x, ~8, 5, x});
    CHECK(list(uses.next_write, 6) == List{5, 6, 5, ~7, ~6, ~8});
    CHECK(list(uses.next_read, 6) == List{x, 8, x, 8, ~5, x});
    CHECK(list(uses.paired_read, 6) == List{-1, 0, 0, -1, 1, -1});
  });
}

TEST_CASE("sparse delta memories that are carried on equal the CPU's", "[fast]") {
  const int64_t length = GENERATE(1, 5);
  const Sizes sizes{.batch = 3, .length = length, .heads = 2, .slots = 16, .dim = 66, .writes = 3, .reads = 5};
  Case(sizes, {static_cast<int32_t>(length)}, false, true, false).check<float>(true);
}

TEST_CASE("sparse delta memories do not race", "[threads]") {
  Case({.batch = 1, .length = 3, .heads = 1, .slots = 9, .dim = 65, .writes = 6, .reads = 5}, {1, 2}, false, true,
       false)
      .check<float>(false);
  Case({.batch = 1, .length = 3, .heads = 1, .slots = 16, .dim = 72, .writes = 12, .reads = 9}, {1, 2}, false, true,
       true)
      .check<bf16>(false);
}

}  // namespace
