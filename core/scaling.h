#pragma once
#include <cstdint>

namespace hebb {

/// How a field's value becomes smaller with the model that has it (docs/ladders.md, The rule).
struct Scaling {
  enum class Kind {
    none,
    heads,
    head_channels,
    rope_channels,
    channels,
    heads_of_width,
    length,
    square,
    steps,
    step_rate
  };

  Kind kind = Kind::none;
  int64_t least = 1;
  double power = 1;        // of the factor of lengths
  bool is_window = false;  // lengths: the shortest window of a sweep keeps a few tokens
};

namespace scaling {
using Kind = Scaling::Kind;
constexpr int64_t kLeastChannels = 16, kLeastRank = 4;

/// Numbers of heads of a layer, which keep their ratios, and channels of a head, which keep theirs.
inline constexpr Scaling heads{.kind = Kind::heads}, head_channels{.kind = Kind::head_channels};
/// Rotated channels, as those of a head.
constexpr Scaling rope_channels(int64_t least) { return {.kind = Kind::rope_channels, .least = least}; }
/// Channels as those of the model, in multiples of 8, or of 1 where fewer than 8 are allowed.
constexpr Scaling channels(int64_t least = kLeastChannels) { return {.kind = Kind::channels, .least = least}; }
inline constexpr Scaling rank = channels(kLeastRank);
/// Heads that divide hidden_size, of an even number of channels.
constexpr Scaling heads_of_width(int64_t least_channels) {
  return {.kind = Kind::heads_of_width, .least = least_channels};
}
/// Tokens, chunks, slots: by the factor of lengths to `power`.
constexpr Scaling length(double power = 1, int64_t least = 1) {
  return {.kind = Kind::length, .least = least, .power = power};
}
/// Tokens of a window or chunk that the model's function depends on.
inline constexpr Scaling window{.kind = Kind::length, .is_window = true};
/// Sub-keys, of which a table has the square in slots, and what is read or written of the slots: a softmax over one
/// slot learns nothing.
inline constexpr Scaling subkeys = length(0.5, 4), slots_per_token = length(0.5, 2);
/// The square of a number of sub-keys.
inline constexpr Scaling squared_subkeys{.kind = Kind::square, .least = 4, .power = 0.5};
/// Optimizer steps, and rates of what must get as far in fewer steps.
inline constexpr Scaling steps{.kind = Kind::steps, .least = 0}, step_rate{.kind = Kind::step_rate};
}  // namespace scaling

}  // namespace hebb
