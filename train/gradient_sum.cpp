#include "train/gradient_sum.h"

#include <algorithm>

#include "kernels/ordered_sum/ordered_sum.h"

namespace hebb {
namespace {

std::vector<int64_t> sizes_of(const Optimizer& optimizer) {
  std::vector<int64_t> sizes;
  for (const Optimizer::Rule& rule : optimizer.rules()) { sizes.push_back(rule.param->spec.shape.numel()); }
  return sizes;
}

std::vector<Buffer> flat_buffers(Arena& arena, int count, int64_t size, DType dtype) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < count; ++i) { buffers.emplace_back(arena, Shape{size}, dtype, "gradients"); }
  return buffers;
}

std::vector<Tensor> tensors_of(const std::vector<Buffer>& buffers) { return {buffers.begin(), buffers.end()}; }

}  // namespace

GradientSum::GradientSum(const RunConfig& config, const Ranks& ranks, int own_lanes, bool gathers, DType dtype,
                         Optimizer& optimizer, Arena& state)
    : ranks_(ranks),
      optimizer_(optimizer),
      gathers_(gathers),
      layout_(sizes_of(optimizer), static_cast<int>(*config.train.lanes),
              config.train.comm.value_or(CommConfig{}).bucket_mib),
      buffers_(flat_buffers(state, LaneSums::buffers(own_lanes), layout_.size(), sum_dtype(dtype))),
      sums_(own_lanes, tensors_of(buffers_)),
      wire_(config.train.comm.value_or(CommConfig{}).reduce == "bf16" ? DType::bf16 : first().dtype) {
  point_gradients(first());
}

void GradientSum::find_segments(Arena& state) {
  for (const FlatSegment& segment : layout_.segments()) {
    if (layout_.owner(segment, ranks_.size()) == ranks_.rank()) { segments_.push_back(segment.range); }
  }
  const auto count = std::max<int64_t>(static_cast<int64_t>(segments_.size()), 1);
  begins_ = Buffer(state, {count}, DType::i64, "segments of gradients");
  ends_ = Buffer(state, {count}, DType::i64, "segments of gradients");
  squares_ = Buffer(state, {count}, DType::f64, "sums of squares");
}

void GradientSum::initialize(Stream& stream) {
  std::vector<int64_t> begins, ends;
  for (const ElementRange& s : segments_) {
    begins.push_back(s.begin);
    ends.push_back(s.end);
  }
  if (begins.empty() || stream.counting()) { return; }
  copy_to_device(stream, begins_, begins.data());
  copy_to_device(stream, ends_, ends.data());
}

int64_t GradientSum::bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) { bytes += buffer.tensor().bytes(); }
  return bytes;
}

void GradientSum::point_gradients(const Tensor& flat) const {
  for (int p = 0; p < layout_.parameters(); ++p) {
    Param& param = *optimizer_.rules()[static_cast<size_t>(p)].param;
    param.grad = flat.slice(layout_.parameter(p).begin, param.spec.shape);
  }
}

void GradientSum::begin_lane(Stream& stream, bool is_zero) {
  const Tensor& flat = sums_.next();
  if (!is_zero) { fill_zero(stream, flat); }
  point_gradients(flat);
}

ReduceScratch GradientSum::scratch(Workspace& workspace) const {
  return ReduceScratch::of(workspace, layout_.bucket(0).size(), first().dtype, wire_);
}

void GradientSum::send_bucket(Stream& stream, int64_t bucket, const ReduceScratch& scratch) const {
  const ElementRange whole = layout_.bucket(bucket), part = layout_.part(bucket, ranks_.rank(), ranks_.size());
  reduce_bucket(ranks_.communicator(), stream, first().slice(part.begin, {part.size()}),
                first().slice(whole.begin, {whole.size()}), scratch);
  if (gathers_) { gather_bucket(ranks_, layout_, stream, first(), bucket); }
}

void GradientSum::send_all(Stream& stream, Arena& work) const {
  Workspace workspace(stream, work, "reduction");
  const ReduceScratch room = scratch(workspace);
  for (int64_t b = 0; b < layout_.buckets(); ++b) { send_bucket(stream, b, room); }
}

void GradientSum::sum_squares(Stream& stream) const {
  const Tensor& total = sums_.total();
  if (const auto count = static_cast<int64_t>(segments_.size()); count > 0) {
    run(stream, SegmentSquares{.partial = squares_.tensor().slice(0, {count}),
                               .x = total,
                               .begin = begins_.tensor().slice(0, {count}),
                               .end = ends_.tensor().slice(0, {count})});
  }
}

void gather_bucket(const Ranks& ranks, const BucketLayout& layout, Stream& stream, const Tensor& flat, int64_t bucket) {
  const ElementRange whole = layout.bucket(bucket), part = layout.part(bucket, ranks.rank(), ranks.size());
  ranks.communicator().all_gather(stream, flat.slice(whole.begin, {whole.size()}),
                                  flat.slice(part.begin, {part.size()}));
}

}  // namespace hebb
