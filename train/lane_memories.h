#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/params.h"
#include "train/ranks.h"

namespace hebb {

/// The fast weights of a run with lanes: one memory a lane, each of which sees the rows of its lane alone
/// (docs/layers/fwpkm.md, Data parallel). Param::value is that of the lane whose turn it is. Between steps it is the
/// first own lane's.
class LaneMemories {
 public:
  /// own_lanes: of each rank. params and work outlive this; further memories come from `state`.
  LaneMemories(const Ranks& ranks, ParamStore& params, int own_lanes, Arena& state, Arena& work);

  /// Every lane begins with the values of the first.
  void start(Stream& stream);
  void take_turn(int own_lane);

  /// Those of this rank: parameter, and its values in an own lane.
  struct Memory {
    Param* param;
    Tensor values;
  };
  const std::vector<Memory>& own() const { return own_; }
  std::span<const Memory> of(int own_lane) const {
    return std::span(own_).subspan(each() * static_cast<size_t>(own_lane), each());
  }
  int64_t added_bytes() const;

  int own_lanes() const { return own_lanes_; }
  int lanes() const { return own_lanes_ * ranks_.size(); }
  int first_lane() const { return own_lanes_ * ranks_.rank(); }
  /// The memories of any lane of the run, for a checkpoint. Every rank calls it alike.
  void visit(Stream& stream, int lane, const std::function<void(const Param&, const Tensor&)>& take);
  /// The first lane of the run is what validation reads: its values replace those of the first own lane.
  void read_first(Stream& stream);

 private:
  size_t each() const { return own_.size() / static_cast<size_t>(own_lanes_); }

  Ranks ranks_;
  int own_lanes_;
  Arena& work_;
  std::vector<Buffer> buffers_;
  std::vector<Memory> own_;  // lane by lane
};

}  // namespace hebb
