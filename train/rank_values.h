#pragma once
#include <map>
#include <optional>
#include <vector>

#include "comm/value_layout.h"
#include "optim/optimizer.h"
#include "train/gradient_sum.h"

namespace hebb {

/// What the optimizer keeps of a trained parameter: its value, and the first and second moments of AdamW.
enum class Kept { value, first_moment, second_moment };

/// What this rank updates of the trained parameters, and how all ranks come to what the others have updated. Where
/// ranks share (train.zero 1), each has the moments of what it owns, and so the values of parameters that passes read
/// as bf16 copies; what is whole for a moment lies in the spare buffer of the gradients.
class RankValues {
 public:
  /// optimizer and sum outlive this.
  RankValues(const Ranks& ranks, bool shares, Optimizer& optimizer, const GradientSum& sum, Arena& state);
  void initialize(Stream& stream);

  bool shares() const { return shares_; }
  /// What this rank updates.
  const std::vector<Optimizer::Part>& parts() const { return parts_; }
  /// The place of a parameter among the trained ones, in order of declaration.
  const std::map<const Param*, int>& index() const { return index_of_; }
  int64_t bytes() const { return values_.tensor().defined() ? values_.tensor().bytes() : 0; }

  /// A layer that starts a parameter anew sets its count of updates to 0 (Param::reset_moments).
  void reset_moments(Stream& stream);
  /// Puts what this rank has updated where it travels.
  void pack(Stream& stream) const;
  /// Takes what other ranks have updated of a bucket. Every rank calls it.
  void gather(Stream& stream, int64_t bucket) const;

  /// Brings what is kept of all ranks into the spare buffer, where whole() finds it. Returns whether it wrote there:
  /// ranks that share nothing have it already. Every rank calls it.
  bool collect(Stream& stream, Kept kept) const;
  /// What is kept of a trained parameter, after collect(); or room for it, before keep().
  Tensor whole(const Param& p, Kept kept) const;
  void keep(Stream& stream, Kept kept) const;
  /// Param::value of shared values lies in the spare buffer until it is lent no longer.
  void lend(bool is_lent);

 private:
  struct Slice {  // of one parameter, updated by this rank
    size_t rule;
    ElementRange flat;
    int64_t moments_at;  // in m_ and v_
    int64_t value_at;    // in values_; -1: the store has it
  };
  /// What passes read of a piece of a parameter, and the place where it travels.
  struct Travelling {
    Tensor read, place;
  };
  const Param& param(size_t rule) const { return *optimizer_.rules()[rule].param; }
  void find_slices(Arena& state);
  void find_parts();
  Travelling travelling(int64_t bucket, const ValueLayout::Piece& piece) const;
  bool is_shared(const Param& p, Kept kept) const;
  Tensor within(const Slice& slice, const Tensor& tensor) const;  // tensor: of the parameter's shape
  Tensor of_rank(const Slice& slice, Kept kept) const;

  Ranks ranks_;
  bool shares_;
  Optimizer& optimizer_;
  const GradientSum& sum_;
  const BucketLayout& layout_;
  std::map<const Param*, int> index_of_;
  std::vector<Slice> slices_;
  std::vector<Optimizer::Part> parts_;  // of the slices
  std::optional<ValueLayout> value_layout_;
  Buffer values_, m_, v_;  // what is shared: of the slices, one after the other
};

}  // namespace hebb
