#include <memory>
#include <thread>

#include "kernels/sparse_delta/slots.h"

namespace hebb::cpu {

using sparse_delta::Channels;
using sparse_delta::Sizes;
using sparse_delta::Task;
using sparse_delta::Token;

namespace {

/// Number of a private row, whether it was written or not.
int32_t number(int32_t code) { return code >= 0 ? code : ~code; }

/// Where a task's partial sums of a token go.
template <class S> struct Partial {
  S *e_adjoint, *m_d_u, *d_q, *d_beta;

  Partial(const SparseDeltaBackward& a, const Sizes& n, const Task<S>& task, int64_t at) {
    const int64_t i = task.slice * n.tokens * n.heads + at;
    e_adjoint = a.by_write.as<S>() + i * 2 * n.writes;
    m_d_u = e_adjoint + n.writes;
    d_q = a.by_read.as<S>() + i * n.reads;
    d_beta = a.by_token.as<S>() + i;
  }
};

/// Backward in time: the adjoint G of M in the private table, d_u of every token.
template <class S, int NV> void adjoint_sweep(const SparseDeltaBackward& a, const Sizes& n, const Task<S>& task) {
  using Row = Channels<S, NV>;
  std::fill_n(task.rows, task.count * task.row_stride, S(0));
  const int tail = task.tail;
  const int32_t *writes = task.writes + task.sequence->length * n.heads * n.writes,
                *reads = task.reads + task.sequence->length * n.heads * n.reads;
  for (int64_t t = task.end() - 1; t >= task.first(); --t) {
    writes -= n.heads * n.writes;
    reads -= n.heads * n.reads;
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    const Partial<S> partial(a, n, task, at);
    const Row d_y(a.d_y.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.reads; ++i) {
      S* row = task.row(reads[i]);
      Row g(row, tail);
      g.add(token.q[i], d_y);
      g.put(row, tail);
    }
    const Row e(a.error.as<S>() + channel, tail);
    Row d_u(S(0));
    for (int64_t i = 0; i < n.writes; ++i) {
      const Row g(task.row(writes[i]), tail);
      d_u.add(token.k[i], g);
      partial.e_adjoint[i] = g.dot(e);
    }
    d_u.put(a.d_u.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.writes; ++i) {
      S* row = task.row(writes[i]);
      Row g(row, tail);
      g.add(-token.beta * token.k[i], d_u);
      g.scale(token.decay[i * token.decay_step]);
      g.put(row, tail);
    }
  }
}

/// Forward in time: M again, with known writes, and everything that needs it.
template <class S, int NV> void value_sweep(const SparseDeltaBackward& a, const Sizes& n, const Task<S>& task) {
  using Row = Channels<S, NV>;
  const int tail = task.tail;
  const int32_t *writes = task.writes, *reads = task.reads;
  for (int64_t t = task.first(); t < task.end(); ++t) {
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    const Partial<S> partial(a, n, task, at);
    const Row d_u(a.d_u.as<S>() + channel, tail);
    Row u(a.error.as<S>() + channel, tail);
    *partial.d_beta = d_u.dot(u);
    u.scale(token.beta);
    for (int64_t i = 0; i < n.writes; ++i) {
      Row m(task.value(writes[i]), tail);
      m.scale(token.decay[i * token.decay_step]);
      partial.m_d_u[i] = m.dot(d_u);
      m.add(token.k[i], u);
      m.put(task.row(writes[i]), tail);
    }
    const Row d_y(a.d_y.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.reads; ++i) { partial.d_q[i] = Row(task.value(reads[i]), tail).dot(d_y); }
    if (a.d_v.defined()) {
      S* d_v = a.d_v.as<S>() + channel;
      Row d = a.accumulate ? Row(d_v, tail) : Row(S(0));
      d.add(token.beta, d_u);
      d.put(d_v, tail);
    }
    writes += n.heads * n.writes;
    reads += n.heads * n.reads;
  }
}

/// d_memory += G at the start of the sequence.
template <class S, int NV> void add_adjoint(const SparseDeltaBackward& a, const Sizes& n, const Task<S>& task) {
  S* d_memory = a.d_memory.as<S>() + task.head * n.slots * n.dim + task.first_channel;
  for (int32_t c = 0; c < task.count; ++c) {
    S* to = d_memory + task.touched[c] * n.dim;
    Channels<S, NV> d(to, task.tail);
    d.add(S(1), Channels<S, NV>(task.row(c), task.tail));
    d.put(to, task.tail);
  }
}

template <class S> void backward(const SparseDeltaBackward& a) {
  const Sizes n(a.in, a.in.memory.defined() ? a.in.memory.size(1) : 0);
  // Contributions to d_memory add in the order of the sequences, whoever computes them. Tasks are handed
  // out in that order, so the task that a worker waits for is running or done.
  const int64_t chains = n.heads * n.slices;
  const auto added = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(chains));
  sparse_delta::for_tasks(n.tasks(), a.in.table.size(0), [&](int64_t i, int64_t worker) {
    const Task<S> task = sparse_delta::make_task<S>(a.in, n, i, worker, {});
    sparse_delta::with_vectors(task.vectors, [&](auto vectors) {
      adjoint_sweep<S, vectors()>(a, n, task);
      if (a.d_memory.defined()) {
        std::atomic<int64_t>& turn = added[static_cast<size_t>(i % chains)];
        while (turn.load(std::memory_order_acquire) != i / chains) { std::this_thread::yield(); }
        add_adjoint<S, vectors()>(a, n, task);
        turn.store(i / chains + 1, std::memory_order_release);
      }
      value_sweep<S, vectors()>(a, n, task);
    });
  });
}

/// One head of a sequence, backward in time.
template <class S> class Scan {
 public:
  Scan(const SparseDeltaScan& a, const Sizes& n, int64_t sequence, int64_t head, double* carry)
      : a_(a), n_(n), s_(sparse_delta::sequences(a.in.sequences)[sequence]), head_(head), carry_(carry) {
    std::fill_n(carry, a.in.count.as<int32_t>()[sequence * n.heads + head], 0.0);
  }

  void run() {
    for (int64_t t = int64_t{s_.first} + s_.length - 1; t >= s_.first; --t) {
      const int64_t at = t * n_.heads + head_;
      const Token<S> token(a_.in, n_, at);
      reads(token, at);
      writes(token, at);
      a_.d_beta.as<S>()[at] = total(a_.by_token, at, 1, 0);
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
    const int32_t* rows = a_.in.read_rows.as<int32_t>() + at * n_.reads;
    S* d_q = a_.d_read_weights.as<S>() + at * n_.reads;
    for (int64_t i = 0; i < n_.reads; ++i) {
      d_q[i] = total(a_.by_read, at, n_.reads, i);
      carry_[number(rows[i])] += double{token.q[i]} * double{d_q[i]};
    }
  }

  void writes(const Token<S>& token, int64_t at) {
    const int32_t* rows = a_.in.write_rows.as<int32_t>() + at * n_.writes;
    S* d_k = a_.d_write_weights.as<S>() + at * n_.writes;
    const double beta = token.beta, g = a_.g.as<S>()[at];
    double d_g = 0;
    for (int64_t i = 0; i < n_.writes; ++i) {
      const double k = token.k[i], into = beta * total(a_.by_write, at, 2 * n_.writes, i),  // <G, u>
          old = beta * total(a_.by_write, at, 2 * n_.writes, n_.writes + i);                // beta <m, d_u>
      double& carry = carry_[number(rows[i])];
      // A decay that underflowed to 0 cuts the past off exactly.
      carry = token.decay[i * token.decay_step] == S(0) ? 0.0 : carry - k * (into + old);
      const bool by_key = token.decay_step != 0;
      d_g += by_key ? k * carry : carry;
      d_k[i] = static_cast<S>(into - old + (by_key ? g * carry : 0.0));
    }
    a_.d_g.as<S>()[at] = static_cast<S>(d_g);
  }

  const SparseDeltaScan& a_;
  const Sizes& n_;
  const SparseDeltaSequence& s_;
  const int64_t head_;
  double* carry_;
};

template <class S> void scan(const SparseDeltaScan& a) {
  const Sizes n(a.in, 0);
  const int64_t rows = a.carry.size(1);
  sparse_delta::for_tasks(n.sequences * n.heads, a.carry.size(0), [&](int64_t i, int64_t worker) {
    Scan<S>(a, n, i / n.heads, i % n.heads, a.carry.as<double>() + worker * rows).run();
  });
}

}  // namespace

void run(Stream&, const SparseDeltaBackward& args) {
  dispatch_real(args.d_y.dtype, [&](auto zero) { backward<decltype(zero)>(args); });
}

void run(Stream&, const SparseDeltaScan& args) {
  dispatch_real(args.d_beta.dtype, [&](auto zero) { scan<decltype(zero)>(args); });
}

}  // namespace hebb::cpu
