#include "layers/vq/op.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "layers/ops/host_values.h"

namespace hebb {
namespace {

/// The points that keys take, or the forced ones.
void select(Pass& pass, const VqSelect& args, bool inspects, const std::string& name) {
  if (!inspects || !take_forced(pass, args.ids, name, "forced codeword", args.points.size(1))) {
    run(pass.stream(), args);
  }
  if (inspects) { record(pass, name, args.ids); }
}

double mean_similarity(Pass& pass, const Tensor& k, const Tensor& points, const Tensor& ids) {
  const Buffer similarity = pass.tape.scratch(ids.shape, sum_dtype(k.dtype), "similarities");
  run(pass.stream(), VqSimilarity{.similarity = similarity, .k = k, .points = points, .ids = ids});
  const std::vector<double> host = host_values(pass.stream(), similarity);
  const double total = std::accumulate(host.begin(), host.end(), 0.0);
  return total / static_cast<double>(ids.numel());
}

Tensor upload(Tape& tape, const std::vector<double>& values, Shape shape, DType dtype) {
  const Tensor to = tape.saved(shape, dtype, "dither");
  dispatch_real(dtype, [&]<class S>(S) {
    const std::vector<S> typed(values.begin(), values.end());
    copy_to_device(tape.stream(), to, typed.data());
  });
  return to;
}

}  // namespace

VqKeys vq_keys(Pass& pass, Var k, Var codes, const VqShape& shape, const VqQuantizer& quantizer,
               const std::string& name) {
  Tape& tape = pass.tape;
  const DType dtype = tape.dtype(k);
  const int64_t kv = shape.kv_heads, n = shape.codewords;
  const VqMode mode = quantizer.mode;
  const Shape k_shape{pass.batch(), pass.length(), kv, shape.key_dim};
  const VqKeys out{tape.output(tape.shape(k), dtype, "quantized keys"),
                   tape.saved({pass.batch(), kv, pass.length()}, DType::i32, "codewords of keys")};
  Buffer between, bias;
  Tensor dither, points = tape.value(codes);
  if (mode != VqMode::nearest) {
    const bool is_segment = mode == VqMode::sf_diveq;
    const int64_t m = is_segment ? n - 1 : n;
    if (is_segment) {
      dither = upload(tape, *quantizer.dither, {kv, m}, sum_dtype(dtype));
      between = tape.scratch({kv, m, shape.key_dim}, dtype, "dithered points");
      points = between;
    }
    bias = tape.scratch({kv, m}, sum_dtype(dtype), "selection bias");
    run(tape.stream(), VqPoints{.points = between,
                                .bias = bias,
                                .codes = tape.value(codes),
                                .dither = dither,
                                .idle = quantizer.idle,
                                .idle_bonus = quantizer.idle_bonus});
  }
  const Tensor keys = tape.value(k).view(k_shape);
  select(pass, VqSelect{.ids = out.ids, .k = keys, .points = points, .bias = bias}, true, name + ".assign");
  run(tape.stream(), VqGather{tape.value(out.keys).view(k_shape), points, out.ids});
  if (pass.measures()) {
    auto& statistics = (*pass.statistics)[name];
    statistics["commitment_similarity"] = mean_similarity(pass, keys, points, out.ids);
    const Buffer nearest = tape.scratch(out.ids.shape, DType::i32, "nearest codewords");
    run(tape.stream(), VqSelect{.ids = nearest, .k = keys, .points = tape.value(codes), .bias = {}});
    statistics["commitment_similarity_eval"] = mean_similarity(pass, keys, tape.value(codes), nearest);
  }
  return tape.record(out, [=](Tape& tape) {
    const GradSlot d_k = tape.grad_slot(k), d_codes = tape.grad_slot(codes);
    run(tape.workspace(), VqKeysBackward{.d_k = d_k.view(k_shape),
                                         .d_codes = d_codes.tensor,
                                         .d_kq = tape.grad(out.keys).view(k_shape),
                                         .k = tape.value(k).view(k_shape),
                                         .codes = tape.value(codes),
                                         .dither = dither,
                                         .ids = out.ids,
                                         .mode = mode,
                                         .accumulate_k = d_k.accumulate,
                                         .accumulate_codes = d_codes.accumulate});
  });
}

VqState::VqState(Arena& arena, int64_t rows, const VqShape& shape, DType dtype)
    : counts(arena, {rows, shape.kv_heads, shape.codewords}, DType::i32, "codeword counts"),
      log_counts(arena, {rows, shape.kv_heads, shape.codewords}, sum_dtype(dtype), "log counts"),
      means(arena, {rows, shape.kv_heads, shape.codewords, shape.value_dim}, sum_dtype(dtype), "codeword values") {}

Tensor vq_nearest(Pass& pass, Var k, Var codes, const VqShape& shape, bool inspects, const std::string& name) {
  const Tensor ids = pass.tape.saved({pass.batch(), shape.kv_heads, pass.length()}, DType::i32, "codewords of keys");
  select(pass,
         VqSelect{.ids = ids,
                  .k = pass.tape.value(k).view({pass.batch(), pass.length(), shape.kv_heads, shape.key_dim}),
                  .points = pass.tape.value(codes),
                  .bias = {}},
         inspects, name + ".assign");
  return ids;
}

Var vq_read(Pass& pass, Var q, Var v, const Tensor& points, const Tensor& ids, const VqShape& shape, int64_t chunk,
            VqState* state) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!tape.recording());
  const DType dtype = tape.dtype(q);
  const int64_t batch = pass.batch(), length = pass.length();
  std::optional<VqState> fresh;
  if (state == nullptr) {
    VqShape own = shape;
    own.codewords = points.size(1);
    state = &fresh.emplace(tape.arena(), batch, own, dtype);
  }
  const Var o = tape.output({batch * length, shape.heads * shape.value_dim}, dtype, "readout");
  run(tape.workspace(), VqRead{.o = tape.value(o).view({batch, length, shape.heads, shape.value_dim}),
                               .dictionary = state->dictionary(),
                               .q = tape.value(q).view({batch, length, shape.heads, shape.key_dim}),
                               .v = tape.value(v).view({batch, length, shape.kv_heads, shape.value_dim}),
                               .points = points,
                               .ids = ids,
                               .doc_start = pass.rows.doc_start(),
                               .chunk = std::min(chunk, length)});
  return o;
}

void vq_report_unquantized(Pass& pass, const VqShape& shape, const std::string& name) {
  if (pass.tape.recomputing()) { return; }
  const int64_t count = pass.tokens() * shape.kv_heads;
  if (const std::vector<int64_t>* forced = forced_decisions(pass, name + ".assign", count)) {
    for (const int64_t id : *forced) {
      if (id != -1) {
        throw DataError(name + ".assign", "forced codeword", std::to_string(id), "-1: this step does not quantize");
      }
    }
  }
  if (pass.records()) {
    pass.inspector->records[name + ".assign"] = {
        {pass.batch(), shape.kv_heads, pass.length()}, std::vector<int64_t>(static_cast<size_t>(count), -1), {}};
  }
}

}  // namespace hebb
