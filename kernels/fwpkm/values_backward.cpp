#include "kernels/fwpkm/keys.h"
#include "kernels/fwpkm/scratch.h"

namespace hebb {

FwpkmValuesBackwardScratch plan(Workspace& workspace, const FwpkmValuesBackward& args) {
  const int64_t table = args.values.size(0), dv = args.values.size(1);
  const DType dtype = sum_dtype(args.d_out.dtype);
  FwpkmValuesBackwardScratch scratch;
  if (args.through) {
    scratch.adjoint = workspace.tensor({std::min(table, args.readers.slots.size(0)), dv}, dtype, "row gradients");
    scratch.place = workspace.tensor({table}, DType::i32, "row gradient places");
  }
  scratch.d_vh = workspace.tensor({args.chunks.at(0).tokens(), dv}, dtype, "reading gradients");
  return scratch;
}
HEBB_KERNEL_PLANNED(FwpkmValuesBackward)

namespace cpu {
namespace {

/// One chunk.
template <class S> struct ValuesBackward {
  const FwpkmValuesBackward& a;
  const FwpkmValuesBackwardScratch& scratch;
  FastChunk chunk;
  FwpkmReaders readers;
  int64_t dv, entries, first_slot, end_slot;  // slots of the chunk among those of all chunks

  const S* row(int64_t g) const {
    return a.before.defined() ? a.before.as<S>() + (first_slot + readers.local.as<int32_t>()[g]) * dv
                              : a.values.as<S>() + a.lookup.slots.as<int32_t>()[g] * dv;
  }
  bool is_read_later(int64_t slot) const { return scratch.place.as<int32_t>()[slot] > end_slot; }
  S* adjoint(int64_t slot) const {
    const int64_t at = scratch.adjoint.size(0) < a.values.size(0) ? scratch.place.as<int32_t>()[slot] - 1 : slot;
    return scratch.adjoint.as<S>() + at * dv;
  }
  /// Gradient of what the update made of the slot of entry g; null where no later chunk read it.
  const S* d_next(int64_t g) const {
    const int64_t slot = a.lookup.slots.as<int32_t>()[g];
    return is_read_later(slot) ? adjoint(slot) : nullptr;
  }
  S step(int64_t g) const {
    const int32_t* starts = readers.starts.as<int32_t>() + readers.local.as<int32_t>()[g];
    return S(a.step) / S(starts[1] - starts[0]);
  }

  void token(int64_t t) const {
    const S *d_out = a.d_out.as<S>() + t * dv, *weights = a.lookup.weights.as<S>();
    S *d_vh = scratch.d_vh.as<S>() + chunk.local(t) * dv, *d_weights = a.d_weights.as<S>();
    std::copy_n(d_out, dv, d_vh);
    const int64_t target = a.through ? a.pairs.targets.as<int32_t>()[t] : -1;
    if (target < 0) {
      read(t, d_vh);
      return;
    }
    const S w = a.pairs.w.defined() ? a.pairs.w.as<S>()[t] : S(1);
    const S *v = a.pairs.v.as<S>() + target * dv, *vh = a.vh.as<S>() + t * dv;
    S *d_v = a.d_v.as<S>() + target * dv, d_w = 0;
    // U = sum_j a_j h_j is never formed: each of its terms goes where U goes.
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) {
      const S* d = d_next(g);
      if (d == nullptr) {
        d_weights[g] = S(0);
        continue;
      }
      const S h = step(g), push = w * weights[g] * h;
      const S inner = h * lane_sum<S>(dv, [&](int64_t i) { return d[i] * (v[i] - vh[i]); });
      d_w += weights[g] * inner;
      d_weights[g] = w * inner;
      for (int64_t i = 0; i < dv; ++i) {
        d_v[i] += push * d[i];
        d_vh[i] -= push * d[i];
      }
    }
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) { d_weights[g] += dot(dv, row(g), d_vh); }
    if (a.d_w.defined()) { a.d_w.as<S>()[t] += d_w; }
  }
  void read(int64_t t, const S* d_vh) const {
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) { a.d_weights.as<S>()[g] = dot(dv, row(g), d_vh); }
  }

  /// dV of slot number u of the chunk.
  void slot(int64_t u) const {
    const int64_t own = readers.slots.as<int32_t>()[u];
    S* d = adjoint(own);
    if (!is_read_later(own)) { std::fill(d, d + dv, S(0)); }
    const int32_t* starts = readers.starts.as<int32_t>();
    for (int64_t i = starts[u]; i < starts[u + 1]; ++i) {
      const int64_t g = readers.readers.as<int32_t>()[i];
      const S weight = a.lookup.weights.as<S>()[g];
      const S* d_vh = scratch.d_vh.as<S>() + chunk.local(g / entries) * dv;
      for (int64_t c = 0; c < dv; ++c) { d[c] += weight * d_vh[c]; }
    }
  }
};

/// place[slot] = 1 + the row of the last chunk that read it.
void find_places(const FwpkmValuesBackward& a, const FwpkmValuesBackwardScratch& scratch, int64_t entries) {
  const int64_t table = a.values.size(0), most = fwpkm_capacity(a.chunks.all.batch * a.chunks.size * entries, table);
  std::fill_n(scratch.place.as<int32_t>(), table, 0);
  for (int64_t c = 0; c < a.chunks.count(); ++c) {
    const FwpkmReaders readers = readers_of(a.readers, a.chunks, c, entries, table);
    for (int64_t u = 0; u < readers.count.as<int32_t>()[0]; ++u) {
      scratch.place.as<int32_t>()[readers.slots.as<int32_t>()[u]] = static_cast<int32_t>(c * most + u + 1);
    }
  }
}

}  // namespace

void run(Stream&, const FwpkmValuesBackward& a, const FwpkmValuesBackwardScratch& scratch) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t dv = a.values.size(1), table = a.values.size(0),
                  entries = a.lookup.weights.numel() / a.lookup.weights.size(0);
    const int64_t most = fwpkm_capacity(a.chunks.all.batch * a.chunks.size * entries, table);
    if (a.through) { find_places(a, scratch, entries); }
    for (int64_t c = a.chunks.count() - 1; c >= 0; --c) {
      const FwpkmReaders readers = readers_of(a.readers, a.chunks, c, entries, table);
      const ValuesBackward<S> b{a, scratch, a.chunks.at(c), readers, dv, entries, c * most, (c + 1) * most};
      each_token(b.chunk, [&](int64_t t) { b.token(t); });
      parallel_each(a.through && c > 0 ? readers.count.as<int32_t>()[0] : 0, 4, [&](int64_t u) { b.slot(u); });
    }
  });
}

}  // namespace cpu
}  // namespace hebb
