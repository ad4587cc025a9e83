#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "data/shards/shard_index.h"

namespace hebb {

/// The header of a NumPy file (.npy, versions 1 to 3) of token ids.
struct NumpyHeader {
  TokenType type = TokenType::u16;
  int64_t tokens = 0;  // of all dimensions together
  int64_t bytes = 0;   // of the header: where the tokens begin
};

bool is_numpy(std::span<const uint8_t> bytes);

/// Reads the header of a whole file. Types: u1, u2, u4, i4, i8, little-endian, in C order.
/// Errors: DataError naming file and byte offset for damage, other types, Fortran order, and a size that does not fit.
/// Source: numpy.lib.format.
NumpyHeader parse_numpy_header(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace hebb
