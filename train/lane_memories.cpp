#include "train/lane_memories.h"

#include <fmt/core.h>

namespace hebb {

LaneMemories::LaneMemories(const Ranks& ranks, ParamStore& params, int own_lanes, Arena& state, Arena& work)
    : ranks_(ranks), own_lanes_(own_lanes), work_(work) {
  for (int lane = 0; lane < own_lanes; ++lane) {
    for (const auto& p : params.all()) {
      if (!p->is_of_lane()) { continue; }
      Tensor values = p->value;
      if (lane > 0) {
        values =
            buffers_.emplace_back(state, p->spec.shape, p->value.dtype, fmt::format("{} of lane {}", p->name(), lane));
      }
      own_.push_back({p.get(), values});
    }
  }
}

void LaneMemories::start(Stream& stream) {
  for (size_t i = each(); i < own_.size(); ++i) { copy(stream, own_[i].values, own_[i % each()].values); }
}

void LaneMemories::take_turn(int own_lane) {
  for (const Memory& memory : of(own_lane)) { memory.param->value = memory.values; }
}

int64_t LaneMemories::added_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) { bytes += buffer.tensor().bytes(); }
  return bytes;
}

void LaneMemories::visit(Stream& stream, int lane, const std::function<void(const Param&, const Tensor&)>& take) {
  const int owner = lane / own_lanes_;
  for (const Memory& memory : of(lane % own_lanes_)) {
    const Param& p = *memory.param;
    Buffer received;
    Tensor values = memory.values;
    if (owner != ranks_.rank()) {
      received = Buffer(work_, p.spec.shape, values.dtype, "memory of a lane");
      values = received;
    }
    ranks_.communicator().broadcast(stream, values, owner);
    take(p, values);
  }
}

void LaneMemories::read_first(Stream& stream) {
  for (const Memory& memory : of(0)) { ranks_.communicator().broadcast(stream, memory.values, 0); }
}

}  // namespace hebb
