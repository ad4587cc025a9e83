#include "comm/ordered_reduce.h"

#include "kernels/ordered_sum/ordered_sum.h"

namespace hebb {

void reduce_bucket(Communicator& communicator, Workspace workspace, const Tensor& part, const Tensor& bucket,
                   DType wire) {
  Stream& stream = workspace.stream();
  const int64_t ranks = communicator.size(), count = part.numel();
  HEBB_ASSERT(bucket.numel() == ranks * count && bucket.dtype == part.dtype);
  if (ranks == 1) {
    copy(stream, part, bucket);
    return;
  }
  const Tensor parts = workspace.tensor({ranks, count}, bucket.dtype, "reduce");
  if (wire == bucket.dtype) {
    communicator.all_to_all(stream, parts, bucket);
  } else {
    const Tensor sent = workspace.tensor(bucket.shape, wire, "reduce"),
                 received = workspace.tensor(parts.shape, wire, "reduce");
    convert(stream, sent, bucket);
    communicator.all_to_all(stream, received, sent);
    convert(stream, parts, received);
  }
  run(stream, OrderedSum{.to = part, .parts = parts});
}

}  // namespace hebb
