#include "comm/ordered_reduce.h"

#include "kernels/ordered_sum/ordered_sum.h"

namespace hebb {

void reduce_bucket(Communicator& communicator, Workspace workspace, const Tensor& part, const Tensor& bucket,
                   DType wire) {
  if (communicator.size() == 1) { return copy(workspace.stream(), part, bucket); }
  const ReduceScratch scratch = ReduceScratch::of(workspace, bucket.numel(), bucket.dtype, wire);
  reduce_bucket(communicator, workspace.stream(), part, bucket, scratch);
}

ReduceScratch ReduceScratch::of(Workspace& workspace, int64_t count, DType dtype, DType wire) {
  ReduceScratch scratch{.parts = workspace.tensor({count}, dtype, "reduce"), .sent = {}, .received = {}};
  if (wire != dtype) {
    scratch.sent = workspace.tensor({count}, wire, "reduce");
    scratch.received = workspace.tensor({count}, wire, "reduce");
  }
  return scratch;
}

void reduce_bucket(Communicator& communicator, Stream& stream, const Tensor& part, const Tensor& bucket,
                   const ReduceScratch& scratch) {
  const int64_t ranks = communicator.size(), count = part.numel();
  HEBB_ASSERT(ranks > 1 && bucket.numel() == ranks * count && bucket.dtype == part.dtype);
  const Tensor parts = scratch.parts.slice(0, {ranks, count});
  if (!scratch.sent.defined()) {
    communicator.all_to_all(stream, parts, bucket);
  } else {
    const Tensor sent = scratch.sent.slice(0, bucket.shape), received = scratch.received.slice(0, parts.shape);
    convert(stream, sent, bucket);
    communicator.all_to_all(stream, received, sent);
    convert(stream, parts, received);
  }
  run(stream, OrderedSum{.to = part, .parts = parts});
}

}  // namespace hebb
