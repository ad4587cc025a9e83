#pragma once
#include <algorithm>

#include "kernels/sparse_delta/scratch.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {

/// Inputs of a sparse delta memory. Slots of a token and head are ascending and distinct.
struct SparseDelta {
  struct Sizes {
    int64_t batch, length, heads, slots, dim, writes, reads;
    int64_t tokens() const { return batch * length; }
  };
  Sizes n;
  std::vector<int64_t> lengths;  // of the sequences of every row
  bool by_key = false, has_memory = true, accumulate = false;
  bool carried = false;  // every row goes on with a state
  Values k, q, g, beta, v, memory, d_y, state;
  std::vector<int64_t> write_slots, read_slots;
  int64_t slots_of_index = 0;  // if not 0: as many slots as the device can sort for one row and head at a time

  explicit SparseDelta(Sizes sizes, std::vector<int64_t> sequences = {})
      : n(sizes), lengths(sequences.empty() ? std::vector<int64_t>{sizes.length} : std::move(sequences)) {
    uint32_t seed = 1;
    const auto numbers = [&seed](int64_t count, double scale) {
      return as_double(random_values<float>(count, seed++, scale));
    };
    const int64_t heads = n.tokens() * n.heads, table = n.heads * n.slots * n.dim;
    k = numbers(heads * n.writes, 0.7);
    q = numbers(heads * n.reads, 1);
    g = numbers(heads, 1);
    beta = numbers(heads, 1);
    memory = numbers(table, 1);
    state = numbers(n.batch * table, 1);
    v = numbers(heads * n.dim, 1);
    d_y = numbers(heads * n.dim, 1);
    for (double& x : g) { x = static_cast<float>(-1 - x); }  // log decays
    for (double& x : beta) { x = std::fabs(x); }
    write_slots = choose(n.writes, 5, n.slots);
    read_slots = choose(n.reads, 6, n.slots);
  }
  /// Slots below `limit` for each token and head.
  std::vector<int64_t> choose(int64_t count, uint32_t seed, int64_t limit) const {
    Numbers numbers(seed);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < n.tokens() * n.heads; ++i) {
      std::vector<int64_t> all(static_cast<size_t>(limit));
      for (size_t s = 0; s < all.size(); ++s) { all[s] = static_cast<int64_t>(s); }
      for (int64_t j = 0; j < count; ++j) {
        std::swap(all[static_cast<size_t>(j)],
                  all[static_cast<size_t>(j) + numbers.below(static_cast<uint32_t>(limit - j))]);
      }
      std::sort(all.begin(), all.begin() + count);
      out.insert(out.end(), all.begin(), all.begin() + count);
    }
    return out;
  }
};

/// Each document writes each of 7 slots some ten times and reads 12; heads keep most of it.
inline SparseDelta many_overwrites(int64_t reads) {
  SparseDelta c({.batch = 2, .length = 40, .heads = 2, .slots = 12, .dim = 72, .writes = 3, .reads = reads},
                {25, 1, 14});
  c.write_slots = c.choose(c.n.writes, 5, 7);
  for (double& x : c.g) { x *= 0.05; }
  return c;
}

struct SparseDeltaResults {
  Values y, final_state, d_v, d_memory, d_k, d_q, d_g, d_beta;
};

/// All kernels of a layer's two passes, or the forward pass of carried rows. With bf16 activations M and G are bf16.
inline SparseDeltaResults sparse_delta_passes(Machine& m, const SparseDelta& c, double tolerance = kSingle,
                                              double of_decays = kSingle) {
  using namespace hebb;
  const SparseDelta::Sizes& n = c.n;
  const Shape heads{n.tokens(), n.heads}, writes{n.tokens(), n.heads, n.writes}, reads{n.tokens(), n.heads, n.reads},
      values{n.tokens(), n.heads, n.dim}, table{n.heads, n.slots, n.dim};
  std::vector<int64_t> list;
  for (int64_t b = 0; b < n.batch; ++b) {
    int64_t at = b * n.length;
    for (const int64_t length : c.lengths) {
      list.insert(list.end(), {at, length, b, c.carried ? 1 : 0});
      at += length;
    }
  }
  SparseDeltaInputs in{};
  in.write_weights = m.values(writes, c.k);
  in.read_weights = m.values(reads, c.q);
  in.beta = m.values(heads, c.beta);
  in.v = m.values(values, c.v);
  in.memory = !c.has_memory ? Tensor{} : c.carried ? m.values(table, c.memory) : m.activations(table, c.memory);
  in.write_slots = m.integers(writes, c.write_slots);
  in.read_slots = m.integers(reads, c.read_slots);
  in.sequences = m.integers({static_cast<int64_t>(list.size()) / 4, 4}, list);
  in.batch = n.batch;
  in.slots = n.slots;
  in.place_type = c.carried ? in.v.dtype : m.activation_scratch({1}).dtype;
  const Tensor decays = m.values(heads, c.g);
  in.decay = m.float_output(c.by_key ? writes : heads);
  m.run(SparseDeltaDecay{in.decay, decays, c.by_key ? in.write_weights : Tensor{}});
  const Tensor y = m.float_output(values);
  if (c.carried) {
    const Tensor state = m.float_values({n.batch, n.heads, n.slots, n.dim}, c.state);
    m.run(SparseDeltaForward{.y = y, .error = {}, .state = state, .in = in}, tolerance);
    SparseDeltaResults results;
    results.y = m.read(y);
    results.final_state = m.read(state);
    return results;
  }
  const Tensor error = m.float_output(values);
  const auto index = [&](bool backward) {
    in.uses = sparse_delta_uses(m.workspace(), in.write_slots, in.read_slots, in.sequences, n.batch, backward);
    m.run(SparseDeltaIndex{.uses = in.uses,
                           .write_slots = in.write_slots,
                           .read_slots = in.read_slots,
                           .sequences = in.sequences,
                           .batch = n.batch,
                           .slots = in.uses.order.defined() ? std::max(n.slots, c.slots_of_index) : n.slots});
  };
  index(false);
  m.run(SparseDeltaForward{.y = y, .error = error, .state = {}, .in = in}, tolerance);
  index(true);
  const SparseDeltaProducts products = sparse_delta_products(m.workspace(), in);
  const Tensor d_v = m.float_gradient(values, c.accumulate),
               d_memory = c.has_memory ? m.float_values(table, Values(static_cast<size_t>(table.numel()))) : Tensor{},
               d_k = m.float_output(writes), d_q = m.float_output(reads), d_g = m.float_output(heads, of_decays),
               d_beta = m.float_output(heads);
  m.run(SparseDeltaBackward{.d_v = d_v,
                            .d_memory = d_memory,
                            .products = products,
                            .d_y = m.values(values, c.d_y),
                            .error = error,
                            .in = in,
                            .accumulate = c.accumulate},
        tolerance);
  m.run(SparseDeltaScan{.d_write_weights = d_k,
                        .d_read_weights = d_q,
                        .d_g = d_g,
                        .d_beta = d_beta,
                        .products = products,
                        .g = decays,
                        .in = in},
        tolerance);
  return {.y = m.read(y),
          .final_state = {},
          .d_v = m.read(d_v),
          .d_memory = d_memory.defined() ? m.read(d_memory) : Values{},
          .d_k = m.read(d_k),
          .d_q = m.read(d_q),
          .d_g = m.read(d_g),
          .d_beta = m.read(d_beta)};
}

}  // namespace hebb_test
