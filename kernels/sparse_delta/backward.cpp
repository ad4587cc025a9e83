#include <memory>
#include <thread>

#include "kernels/sparse_delta/slots.h"

namespace hebb {

SparseDeltaProducts sparse_delta_products(Workspace& workspace, const SparseDeltaInputs& in) {
  const int64_t tokens = in.v.size(0), heads = in.v.size(1), dim = in.v.size(2);
  const DType dtype = sum_dtype(in.v.dtype);
  const int64_t slices = workspace.on_gpu() ? cpu::sparse_delta::divide_up(dim, kSparseDeltaSlice)
                                            : cpu::sparse_delta::SparseDeltaSizes(in).slices;
  return {.by_write = workspace.tensor({slices, tokens, heads, 2, in.write_slots.size(2)}, dtype, "slice sums"),
          .by_read = workspace.tensor({slices, tokens, heads, in.read_slots.size(2)}, dtype, "slice sums"),
          .by_token = workspace.tensor({slices, tokens, heads}, dtype, "slice sums")};
}

SparseDeltaBackwardScratch plan(Workspace& workspace, const SparseDeltaBackward& args) {
  const SparseDeltaInputs& in = args.in;
  const DType dtype = sum_dtype(in.v.dtype);
  SparseDeltaBackwardScratch scratch;
  scratch.table = sparse_delta_table(workspace, in);
  scratch.d_u = workspace.tensor(in.v.shape, dtype, "write gradients");
  if (workspace.on_gpu() && args.d_memory.defined()) {
    scratch.sums = workspace.tensor({in.batch, in.v.size(1), in.slots, in.v.size(2)}, dtype, "sparse delta gradients");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(SparseDeltaBackward)

SparseDeltaScanScratch plan(Workspace& workspace, const SparseDeltaScan& args) {
  const Shape shape = workspace.on_gpu() ? args.in.write_slots.shape
                                         : Shape{cpu::sparse_delta::workers_of(args.in.batch, args.in.v.size(1), 1),
                                                 cpu::sparse_delta::places_of(args.in)};
  return {.carry = workspace.tensor(shape, DType::f64, "decay gradient sums")};
}
HEBB_KERNEL_PLANNED(SparseDeltaScan)

namespace cpu {

using sparse_delta::Channels;
using sparse_delta::SparseDeltaSizes;
using sparse_delta::Task;
using sparse_delta::Token;

namespace {

/// Where a task's partial sums of a token go.
template <class S> struct Partial {
  S *e_adjoint, *m_d_u, *d_q, *d_beta;

  Partial(const SparseDeltaBackward& a, const SparseDeltaSizes& n, const Task<S>& task, int64_t at) {
    const int64_t i = task.slice * n.tokens * n.heads + at;
    e_adjoint = a.products.by_write.as<S>() + i * 2 * n.writes;
    m_d_u = e_adjoint + n.writes;
    d_q = a.products.by_read.as<S>() + i * n.reads;
    d_beta = a.products.by_token.as<S>() + i;
  }
};

/// Backward in time: the adjoint G of M in the private table, d_u of every token.
template <class S, int NV>
void adjoint_scan(const SparseDeltaBackward& a, const Tensor& d_u_of, const SparseDeltaSizes& n, const Task<S>& task) {
  using Slot = Channels<S, NV>;
  std::fill_n(task.places, task.count * task.stride, S(0));
  const int tail = task.tail;
  const int32_t *writes = task.writes + task.sequence->length * n.heads * n.writes,
                *reads = task.reads + task.sequence->length * n.heads * n.reads;
  for (int64_t t = task.end() - 1; t >= task.first(); --t) {
    writes -= n.heads * n.writes;
    reads -= n.heads * n.reads;
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    const Partial<S> partial(a, n, task, at);
    const Slot d_y(a.d_y.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.reads; ++i) {
      S* place = task.place(reads[i]);
      Slot g(place, tail);
      g.add(token.q[i], d_y);
      g.put(place, tail);
    }
    const Slot e(a.error.as<S>() + channel, tail);
    Slot d_u(S(0));
    for (int64_t i = 0; i < n.writes; ++i) {
      const Slot g(task.place(writes[i]), tail);
      d_u.add(token.k[i], g);
      partial.e_adjoint[i] = g.dot(e);
    }
    d_u.put(d_u_of.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.writes; ++i) {
      S* place = task.place(writes[i]);
      Slot g(place, tail);
      g.add(-token.beta * token.k[i], d_u);
      g.scale(token.decay[i * token.decay_step]);
      g.put(place, tail);
    }
  }
}

/// Forward in time: M again, with known writes, and everything that needs it.
template <class S, int NV>
void value_scan(const SparseDeltaBackward& a, const Tensor& d_u_of, const SparseDeltaSizes& n, const Task<S>& task) {
  using Slot = Channels<S, NV>;
  const int tail = task.tail;
  const int32_t *writes = task.writes, *reads = task.reads;
  for (int64_t t = task.first(); t < task.end(); ++t) {
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    const Partial<S> partial(a, n, task, at);
    const Slot d_u(d_u_of.as<S>() + channel, tail);
    Slot u(a.error.as<S>() + channel, tail);
    *partial.d_beta = d_u.dot(u);
    u.scale(token.beta);
    for (int64_t i = 0; i < n.writes; ++i) {
      Slot m(task.value(writes[i]), tail);
      m.scale(token.decay[i * token.decay_step]);
      partial.m_d_u[i] = m.dot(d_u);
      m.add(token.k[i], u);
      m.put(task.place(writes[i]), tail);
    }
    const Slot d_y(a.d_y.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.reads; ++i) { partial.d_q[i] = Slot(task.value(reads[i]), tail).dot(d_y); }
    if (a.d_v.defined()) {
      S* d_v = a.d_v.as<S>() + channel;
      Slot d = a.accumulate ? Slot(d_v, tail) : Slot(S(0));
      d.add(token.beta, d_u);
      d.put(d_v, tail);
    }
    writes += n.heads * n.writes;
    reads += n.heads * n.reads;
  }
}

/// d_memory += G at the start of the sequence.
template <class S, int NV>
void add_adjoint(const SparseDeltaBackward& a, const SparseDeltaSizes& n, const Task<S>& task) {
  S* d_memory = a.d_memory.as<S>() + task.head * n.slots * n.dim + task.first_channel;
  for (int32_t c = 0; c < task.count; ++c) {
    S* to = d_memory + task.numbered[c] * n.dim;
    Channels<S, NV> d(to, task.tail);
    d.add(S(1), Channels<S, NV>(task.place(c), task.tail));
    d.put(to, task.tail);
  }
}

/// One head of a sequence, backward in time.
template <class S> class Scan {
 public:
  Scan(const SparseDeltaScan& a, const SparseDeltaSizes& n, int64_t sequence, int64_t head, double* carry)
      : a_(a), n_(n), s_(sparse_delta::sequences(a.in.sequences)[sequence]), head_(head), carry_(carry) {
    std::fill_n(carry, a.in.uses.count.as<int32_t>()[sequence * n.heads + head], 0.0);
  }

  void run() {
    for (int64_t t = int64_t{s_.first} + s_.length - 1; t >= s_.first; --t) {
      const int64_t at = t * n_.heads + head_;
      const Token<S> token(a_.in, n_, at);
      reads(token, at);
      writes(token, at);
      a_.d_beta.as<S>()[at] = total(a_.products.by_token, at, 1, 0);
    }
  }

 private:
  /// Entry i of `width` of the head of the token, over all slices.
  S total(const Tensor& partial, int64_t at, int64_t width, int64_t i) const {
    const S* p = partial.as<S>() + at * width + i;
    const int64_t stride = n_.tokens * n_.heads * width;
    S sum = p[0];
    for (int64_t slice = 1; slice < n_.slices; ++slice) { sum += p[slice * stride]; }
    return sum;
  }

  void reads(const Token<S>& token, int64_t at) {
    const int32_t* codes = a_.in.uses.read_codes.as<int32_t>() + at * n_.reads;
    S* d_q = a_.d_read_weights.as<S>() + at * n_.reads;
    for (int64_t i = 0; i < n_.reads; ++i) {
      d_q[i] = total(a_.products.by_read, at, n_.reads, i);
      carry_[sparse_delta::place_of(codes[i])] += double{token.q[i]} * double{d_q[i]};
    }
  }

  void writes(const Token<S>& token, int64_t at) {
    const int32_t* codes = a_.in.uses.write_codes.as<int32_t>() + at * n_.writes;
    S* d_k = a_.d_write_weights.as<S>() + at * n_.writes;
    const double beta = token.beta, g = a_.g.as<S>()[at];
    double d_g = 0;
    for (int64_t i = 0; i < n_.writes; ++i) {
      const double k = token.k[i], into = beta * total(a_.products.by_write, at, 2 * n_.writes, i),  // <G, u>
          old = beta * total(a_.products.by_write, at, 2 * n_.writes, n_.writes + i);                // beta <m, d_u>
      double& carry = carry_[sparse_delta::place_of(codes[i])];
      // A decay that underflowed to 0 cuts the past off exactly.
      carry = token.decay[i * token.decay_step] == S(0) ? 0.0 : carry - k * (into + old);
      const bool by_key = token.decay_step != 0;
      d_g += by_key ? k * carry : carry;
      d_k[i] = static_cast<S>(into - old + (by_key ? g * carry : 0.0));
    }
    a_.d_g.as<S>()[at] = static_cast<S>(d_g);
  }

  const SparseDeltaScan& a_;
  const SparseDeltaSizes& n_;
  const SparseDeltaSequence& s_;
  const int64_t head_;
  double* carry_;
};

}  // namespace

void run(Stream&, const SparseDeltaBackward& a, const SparseDeltaBackwardScratch& scratch) {
  dispatch_real(a.d_y.dtype, [&]<class S>(S) {
    const SparseDeltaSizes n(a.in);
    // Contributions to d_memory add in the order of the sequences, whoever computes them. Tasks are handed
    // out in that order, so the task that a worker waits for is running or done.
    const int64_t chains = n.heads * n.slices;
    const auto added = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(chains));
    for_tasks(n.tasks(), scratch.table.size(0), [&](int64_t i, int64_t worker) {
      const Task<S> task = sparse_delta::make_task<S>(a.in, n, i, scratch.table, worker, {});
      sparse_delta::with_vectors(task.vectors, [&](auto vectors) {
        adjoint_scan<S, vectors()>(a, scratch.d_u, n, task);
        if (a.d_memory.defined()) {
          std::atomic<int64_t>& turn = added[static_cast<size_t>(i % chains)];
          while (turn.load(std::memory_order_acquire) != i / chains) { std::this_thread::yield(); }
          add_adjoint<S, vectors()>(a, n, task);
          turn.store(i / chains + 1, std::memory_order_release);
        }
        value_scan<S, vectors()>(a, scratch.d_u, n, task);
      });
    });
  });
}

void run(Stream&, const SparseDeltaScan& a, const SparseDeltaScanScratch& scratch) {
  dispatch_real(a.d_beta.dtype, [&]<class S>(S) {
    const SparseDeltaSizes n(a.in);
    const int64_t places = scratch.carry.size(1);
    for_tasks(n.sequences * n.heads, scratch.carry.size(0), [&](int64_t i, int64_t worker) {
      Scan<S>(a, n, i / n.heads, i % n.heads, scratch.carry.as<double>() + worker * places).run();
    });
  });
}

}  // namespace cpu
}  // namespace hebb
