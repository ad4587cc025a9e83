#include "kernels/lact/memory.h"
#include "kernels/lact/scratch.h"

namespace hebb {
namespace cpu {
namespace {

using lact::HeadInputs;
using lact::LactSizes;
using lact::Weights;

template <class S> struct LactForwardParts {
  lact::Memory<S> memory;
  NewtonSchulz<S> muon;
  S *weights, *momentum, *sums, *mixed;  // used where nothing is carried

  LactForwardParts(ScratchParts<S>& parts, const LactSizes& n)
      : memory(parts, n),
        muon(parts, n.fast, n.dim, false),
        weights(parts.take(n.all())),
        momentum(parts.take(n.all())),
        sums(parts.take(n.all())),
        mixed(parts.take(1)) {}

  void carry(const LactForward& a, const LactSizes& n, int64_t at) {
    weights = a.weights.as<S>() + at * n.all();
    momentum = a.momentum.as<S>() + at * n.all();
    sums = a.sums.as<S>() + at * n.all();
    mixed = a.mix_sums.as<S>() + at;
  }

  /// What stands before a document's first chunk.
  void begin_document(const LactSizes& n, const Weights<S>& initial) {
    for (int m = 0; m < 3; ++m) { std::copy_n(initial.w[m], n.matrix(), weights + m * n.matrix()); }
    std::fill_n(momentum, n.all(), S(0));
    begin_chunk(n);
  }
  void begin_chunk(const LactSizes& n) {
    std::fill_n(sums, n.all(), S(0));
    *mixed = S(0);
  }

  /// The update behind a full chunk.
  void update(const LactSizes& n, const LactRule& rule, const Weights<S>& initial) {
    const S decay = *mixed / static_cast<S>(rule.chunk);
    lact::accumulate(n, sums, decay, rule.momentum ? momentum : nullptr, momentum);
    lact::move(n, rule, Weights<S>::together(weights, n), momentum, initial, muon, weights);
    begin_chunk(n);
  }
};

template <class S> void forward_head(const LactForward& a, const LactSizes& n, int64_t row, int64_t head, S* scratch) {
  ScratchParts<S> parts(scratch);
  LactForwardParts<S> f(parts, n);
  const bool carries = a.weights.defined();
  if (carries) { f.carry(a, n, row * n.heads + head); }
  const HeadInputs<S> in(a, n, head);
  const Weights<S> initial = Weights<S>::initial(a, n, head), current = Weights<S>::together(f.weights, n);
  const int32_t* doc_start = a.doc_start.as<int32_t>() + row * n.length;
  for (int64_t t = 0; t < n.length;) {
    const int64_t position = t - doc_start[t];
    int64_t end = t + 1;
    while (end < n.length && doc_start[end] == doc_start[t] && (end - doc_start[t]) % a.rule.chunk != 0) { ++end; }
    if (position == 0) {
      f.begin_document(n, initial);
    } else if (position % a.rule.chunk == 0) {
      f.update(n, a.rule, initial);
    }
    const int64_t token = row * n.length + t, at = token * in.stride;
    f.memory.read(current, end - t, in.q + at, a.y.as<S>() + at + head * n.dim, in.stride);
    const bool has_later = end < n.length && doc_start[end] == doc_start[t];
    if (carries || has_later) {
      *f.mixed += f.memory.gather(current, in, token, end - t, static_cast<S>(a.rule.rate_shift), f.sums);
    }
    t = end;
  }
}

}  // namespace

void run(Stream&, const LactForward& a, const LactForwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const LactSizes n(a.q, a.w0);
    for_tasks(n.batch * n.heads, scratch.memory.size(0), [&](int64_t task, int64_t slot) {
      forward_head<S>(a, n, task / n.heads, task % n.heads, scratch.memory.as<S>() + slot * scratch.memory.size(1));
    });
  });
}

}  // namespace cpu

LactForwardScratch plan(Workspace& workspace, const LactForward& args) {
  const int64_t pairs = args.q.size(0) * args.q.size(2), dim = args.q.size(3), fast = args.w0.size(1);
  int64_t slots = pairs, elements;
  if (workspace.on_gpu()) {
    elements = LactLayout(args.q.size(1), args.rule, dim, fast, args.weights.defined(), false).total;
  } else {
    slots = std::min<int64_t>(threads(), pairs);
    elements = cpu::elements_of<cpu::LactForwardParts<float>>(cpu::lact::LactSizes(dim, fast));
  }
  return {.memory = workspace.tensor({slots, elements}, sum_dtype(args.q.dtype), "fast weight scratch")};
}
HEBB_KERNEL_PLANNED(LactForward)

}  // namespace hebb
