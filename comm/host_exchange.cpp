#include "comm/host_exchange.h"

#include <algorithm>
#include <cstring>

namespace hebb {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // words of a rank at once: device memory for the texts of all is bounded

}  // namespace

HostExchange::HostExchange(Communicator& communicator, DeviceKind device)
    : communicator_(communicator), arena_(device, "exchange of ranks") {
  stream_.device = device;
}

std::vector<uint64_t> HostExchange::gather(std::span<const uint64_t> own) {
  if (communicator_.size() == 1) { return {own.begin(), own.end()}; }
  const auto bytes = static_cast<int64_t>(own.size_bytes());
  const Buffer send(arena_, {bytes}, DType::u8, "own values"),
      receive(arena_, {bytes * communicator_.size()}, DType::u8, "values of all ranks");
  copy_to_device(stream_, send, own.data());
  communicator_.all_gather(stream_, receive, send);
  std::vector<uint64_t> all(own.size() * static_cast<size_t>(communicator_.size()));
  copy_to_host(stream_, all.data(), receive);
  return all;
}

std::vector<std::string> HostExchange::gather_texts(const std::string& own) {
  const uint64_t length = own.size();
  const std::vector<uint64_t> lengths = gather({&length, 1});
  const size_t longest = *std::max_element(lengths.begin(), lengths.end());
  const size_t room = (longest + sizeof(uint64_t) - 1) / sizeof(uint64_t);  // words
  std::vector<std::string> texts(lengths.size());
  for (size_t at = 0; at < room; at += kPiece) {
    const size_t words = std::min(kPiece, room - at), byte = at * sizeof(uint64_t);
    const auto here = [&](size_t length) {
      return length > byte ? std::min(length - byte, words * sizeof(uint64_t)) : 0;
    };
    std::vector<uint64_t> mine(words);
    if (here(own.size()) > 0) { std::memcpy(mine.data(), own.data() + byte, here(own.size())); }
    const std::vector<uint64_t> all = gather(mine);
    for (size_t rank = 0; rank < lengths.size(); ++rank) {
      texts[rank].append(reinterpret_cast<const char*>(all.data() + rank * words), here(lengths[rank]));
    }
  }
  return texts;
}

std::string HostExchange::from_first(const std::string& own) {
  return gather_texts(communicator_.rank() == 0 ? own : "")[0];
}

}  // namespace hebb
