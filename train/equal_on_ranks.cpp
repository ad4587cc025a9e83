#include "train/equal_on_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"

namespace hebb {
namespace {

/// A hash of the tensor's bytes, 8 at a time. One word that differs always changes it: each step is a bijection.
uint64_t hash_of(Stream& stream, const Tensor& tensor) {
  constexpr int64_t kAtOnce = int64_t{1} << 26;  // bounds what a GPU's values take of the host
  std::vector<char> copied;
  uint64_t hash = 0;
  for (int64_t at = 0; at < tensor.bytes(); at += kAtOnce) {
    const int64_t size = std::min(kAtOnce, tensor.bytes() - at);
    const char* bytes = static_cast<const char*>(tensor.data) + at;
    if (stream.on_gpu()) {
      copied.resize(static_cast<size_t>(size));
      copy_to_host(stream, copied.data(), {const_cast<char*>(bytes), DType::u8, {size}});
      bytes = copied.data();
    }
    for (int64_t i = 0; i < size; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, static_cast<size_t>(std::min<int64_t>(8, size - i)));
      hash = (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15u;
    }
  }
  return hash;
}

}  // namespace

void require_equal_on_ranks(Stream& stream, HostExchange& host, int ranks, const ParamStore& params) {
  if (ranks == 1) { return; }
  std::vector<uint64_t> own;
  std::vector<std::pair<const Param*, const char*>> compared;
  const auto compare = [&](const Param& p, const char* what, uint64_t word) {
    compared.emplace_back(&p, what);
    own.push_back(word);
  };
  for (const auto& p : params.all()) {
    if (p->is_of_lane()) { continue; }
    if (p->value.defined()) { compare(*p, "the values", hash_of(stream, p->value)); }
    if (p->copy.defined()) { compare(*p, "the rounded values", hash_of(stream, p->copy)); }
    compare(*p, "the counts of updates", static_cast<uint64_t>(p->updates));
  }
  const std::vector<uint64_t> all = host.gather(own);
  for (size_t i = 0; i < own.size(); ++i) {
    for (size_t rank = 1; rank < static_cast<size_t>(ranks); ++rank) {
      if (all[rank * own.size() + i] != all[i]) {
        throw NumericError(
            compared[i].first->name(),
            fmt::format("{} of rank {:d} differ from those of rank 0; nothing is saved", compared[i].second, rank));
      }
    }
  }
}

}  // namespace hebb
