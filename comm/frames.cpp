#include "comm/frames.h"

#include <fmt/core.h>

#include "core/error.h"

namespace hebb {
namespace {

constexpr size_t kHeader = 4;

[[noreturn]] void fail(const std::string& what) { throw CommError("control connection", what); }

const Json& member(const Json& frame, std::string_view key) {
  const Json* value = frame.find(key);
  if (value == nullptr) { fail("a frame without " + std::string(key)); }
  return *value;
}

}  // namespace

std::string encode_frame(const Json& frame) {
  const std::string text = frame.dump();
  HEBB_ASSERT(text.size() <= kLargestFrame);
  std::string bytes;
  for (size_t i = 0; i < kHeader; ++i) { bytes += static_cast<char>((text.size() >> (8 * i)) & 0xff); }
  return bytes + text;
}

std::optional<Json> FrameReader::next() {
  if (buffer_.size() < kHeader) { return std::nullopt; }
  size_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) { length |= static_cast<size_t>(static_cast<uint8_t>(buffer_[i])) << (8 * i); }
  if (length > limit_) { fail(fmt::format("a frame of {:d} bytes (expected at most {:d})", length, limit_)); }
  if (buffer_.size() < kHeader + length) { return std::nullopt; }
  Json frame;
  try {
    frame = parse_json(std::string_view(buffer_).substr(kHeader, length), "frame");
  } catch (const Error& error) { fail(error.what()); }
  buffer_.erase(0, kHeader + length);
  if (!frame.is_object()) { fail("a frame that is no object"); }
  frame_kind(frame);
  return frame;
}

const std::string& frame_text(const Json& frame, std::string_view key) {
  const Json& value = member(frame, key);
  if (!value.is_string()) { fail("a frame whose " + std::string(key) + " is no text"); }
  return value.as_string();
}

int64_t frame_integer(const Json& frame, std::string_view key) {
  const Json& value = member(frame, key);
  if (value.kind() != Json::Kind::integer) { fail("a frame whose " + std::string(key) + " is no integer"); }
  return value.as_int();
}

const std::string& frame_kind(const Json& frame) { return frame_text(frame, "kind"); }

}  // namespace hebb
